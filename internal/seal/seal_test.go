package seal_test

import (
	"encoding/base64"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/adaptivethrottler/throttler/internal/seal"
)

func TestWhatIsSealedOpensWithTheSameSecretPurposeAndContext(t *testing.T) {
	open := func(secret, purpose, context string, sealed []byte) error {
		aead, err := seal.New([]byte(secret), purpose)
		require.NoError(t, err)
		text, err := aead.Open(nil, nil, sealed, []byte(context))
		if err == nil {
			require.Equal(t, "text", string(text))
		}
		return err
	}
	aead, err := seal.New([]byte("secret"), "login handover")
	require.NoError(t, err)
	sealed := aead.Seal(nil, nil, []byte("text"), []byte("context"))
	require.Len(t, sealed, 12+len("text")+16, "the nonce, and the tag")
	require.NoError(t, open("secret", "login handover", "context", sealed))
	require.Error(t, open("other", "login handover", "context", sealed))
	require.Error(t, open("secret", "other", "context", sealed))
	require.Error(t, open("secret", "login handover", "other", sealed))
	require.NotEqual(t, sealed, aead.Seal(nil, nil, []byte("text"), []byte("context")))

	earlier, err := base64.StdEncoding.DecodeString("con9XUbKudhDkAU825Johf29F4fEgRhCsLZAfPEYoe8=")
	require.NoError(t, err)
	require.NoError(t, open("secret", "login handover", "context", earlier), "sealed by an earlier version")
}
