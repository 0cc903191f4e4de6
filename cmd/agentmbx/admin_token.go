package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/cobra"

	"github.com/agentmbx/agentmbx/admin/api"
)

func newAdminToken(e env) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "token FILE",
		Short: "Make a token for the desk over TCP",
		Long: `Make a token for the desk over TCP: the token goes into FILE (0600), its SHA-256 is
printed. The relay is told the hash, and whoever uses the desk has the file. A
file that exists is never written over.`,
		Example: `  agentmbx relay admin token ~/desk.token
  agentmbx relay admin queues --url https://relay.example:7375 --token-file ~/desk.token`,
		Args: nArgs(1, 1, "a file for the token"),
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		hash, err := makeToken(args[0])
		if err != nil {
			return err
		}
		if asJSON {
			return printJSON(e.out, map[string]string{"file": args[0], "sha256": hash})
		}
		fmt.Fprintf(e.errw, "the token is in %s; tell the relay its hash, one of\n  MBX_ADMIN_TOKEN_SHA256=%s\n  MBX_ADMIN_READONLY_TOKEN_SHA256=%s\n", args[0], hash, hash)
		_, err = fmt.Fprintln(e.out, hash)
		return err
	}
	return cmd
}

// makeToken writes a new token to a new file and answers its hash.
func makeToken(file string) (hash string, err error) {
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	token := api.TokenPrefix + hex.EncodeToString(secret)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return "", refused(fmt.Errorf("%s exists: name a new file", file))
	}
	if err != nil {
		return "", err
	}
	_, err = f.WriteString(token + "\n")
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return "", errors.Join(err, os.Remove(file))
	}
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:]), nil
}
