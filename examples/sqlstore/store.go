package sqlstore

import (
	"database/sql"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/bradfitz/gomemcache/memcache"
)

// Table creates the table. number changes with each write, expires is in milliseconds.
const Table = `CREATE TABLE IF NOT EXISTS records (
	name VARCHAR(250) PRIMARY KEY, value BLOB NOT NULL, flags BIGINT NOT NULL, number BIGINT NOT NULL, expires BIGINT NOT NULL)`

// A Store is a throttler.Client.
type Store struct{ DB *sql.DB }

func (s Store) Get(key string) (*memcache.Item, error) {
	items, err := s.GetMulti([]string{key})
	if err == nil && items[key] == nil {
		err = memcache.ErrCacheMiss
	}
	return items[key], err
}

func (s Store) GetMulti(keys []string) (map[string]*memcache.Item, error) {
	args := []any{now()}
	for _, key := range keys {
		args = append(args, key)
	}
	marks := strings.TrimPrefix(strings.Repeat(", ?", len(keys)), ", ")
	rows, err := s.DB.Query("SELECT name, value, flags, number FROM records WHERE expires > ? AND name IN ("+marks+")", args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	items := make(map[string]*memcache.Item)
	for rows.Next() {
		var item memcache.Item
		if err := rows.Scan(&item.Key, &item.Value, &item.Flags, &item.CasID); err != nil {
			return nil, err
		}
		items[item.Key] = &item
	}
	return items, rows.Err()
}

func (s Store) Add(item *memcache.Item) error {
	return s.change(memcache.ErrNotStored, `INSERT INTO records (value, flags, number, expires, name) VALUES (?, ?, ?, ?, ?)
		ON CONFLICT (name) DO UPDATE SET value = excluded.value, flags = excluded.flags, number = excluded.number,
		expires = excluded.expires WHERE records.expires <= ?`, append(columns(item), now())...)
}

func (s Store) CompareAndSwap(item *memcache.Item) error {
	return s.change(memcache.ErrCASConflict, `UPDATE records SET value = ?, flags = ?, number = ?, expires = ?
		WHERE name = ? AND expires > ? AND number = ?`, append(columns(item), now(), int64(item.CasID))...)
}

func (s Store) Delete(key string) error {
	return s.change(memcache.ErrCacheMiss, "DELETE FROM records WHERE name = ? AND expires > ?", key, now())
}

// change carries out a statement and returns none if it has changed no row.
func (s Store) change(none error, statement string, args ...any) error {
	result, err := s.DB.Exec(statement, args...)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); n > 0 || err != nil {
		return err
	}
	return none
}

// Sweep deletes the records that have expired. Call it now and then.
func (s Store) Sweep() error {
	_, err := s.DB.Exec("DELETE FROM records WHERE expires <= ?", now())
	return err
}

func columns(item *memcache.Item) []any {
	return []any{append([]byte{}, item.Value...), item.Flags, rand.Int64() | 1, expires(item), item.Key}
}

func now() int64 { return time.Now().UnixMilli() }

// expires returns when an item does: up to 30 days are a time from now, more is a date.
func expires(item *memcache.Item) int64 {
	const month = 30 * 24 * 60 * 60
	switch seconds := int64(item.Expiration); {
	case seconds == 0:
		return 1 << 62
	case seconds <= month:
		return now() + seconds*1000
	default:
		return seconds * 1000
	}
}
