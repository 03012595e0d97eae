package sqlstore_test

import (
	"database/sql"
	"path/filepath"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/examples/sqlstore"
	"github.com/adaptivethrottler/throttler/storetest"
	"github.com/bradfitz/gomemcache/memcache"
	"github.com/stretchr/testify/require"
	_ "modernc.org/sqlite"
)

// database returns an empty database in a file.
func database(t *testing.T) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "records.db")+
		"?_pragma=journal_mode(WAL)&_pragma=synchronous(OFF)&_pragma=busy_timeout(20000)")
	require.NoError(t, err)
	t.Cleanup(func() { db.Close() })
	_, err = db.Exec(sqlstore.Table)
	require.NoError(t, err)
	return db
}

func TestATableIsAStore(t *testing.T) {
	db := database(t)
	storetest.Run(t, func(*testing.T) throttler.Client { return sqlstore.Store{DB: db} })
}

func TestSweepDeletesWhatHasExpired(t *testing.T) {
	store := sqlstore.Store{DB: database(t)}
	require.NoError(t, store.Add(&memcache.Item{Key: "over", Expiration: -1}))
	require.NoError(t, store.Add(&memcache.Item{Key: "kept", Expiration: 60}))
	time.Sleep(2 * time.Millisecond)
	require.NoError(t, store.Sweep())
	var rows int
	require.NoError(t, store.DB.QueryRow("SELECT count(*) FROM records").Scan(&rows))
	require.Equal(t, 1, rows)
}
