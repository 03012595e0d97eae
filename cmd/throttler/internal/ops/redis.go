package ops

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/adaptivethrottler/throttler/redisstore"
)

// openRedis connects to the store of o.Store.
func (o *Operator) openRedis() (*redisstore.Store, error) {
	s, err := redisstore.Open(o.Store)
	if err != nil {
		return nil, err
	}
	s.Timeout = patience
	return s, nil
}

// listRedis lists the records of Redis.
func (o *Operator) listRedis(ctx context.Context, l *listing) error {
	s, err := o.openRedis()
	if err != nil {
		return err
	}
	defer s.Close()
	if infos, err := s.Info(ctx); err == nil {
		for _, info := range infos {
			l.progress.expect(int(keysOf(info)))
		}
	}
	return l.walk(s.Keys(ctx), func(keys []string) (map[string][]byte, error) {
		items, err := s.GetMulti(keys)
		values := make(map[string][]byte, len(items))
		for key, item := range items {
			values[key] = item.Value
		}
		return values, err
	})
}

// redisStates returns the states of the servers of Redis.
func (o *Operator) redisStates(ctx context.Context) (states []Server, err error) {
	s, err := o.openRedis()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	infos, err := s.Info(ctx)
	for _, server := range slices.Sorted(maps.Keys(infos)) {
		states = append(states, redisState(server, infos[server]))
	}
	for _, stats := range s.Stats() {
		if infos[stats.Server] == nil {
			states = append(states, Server{Server: stats.Server, Error: fmt.Sprint(err)})
		}
	}
	return states, err
}

func redisState(server string, info map[string]string) Server {
	calls := func(command string) int64 {
		count, _, _ := strings.Cut(strings.TrimPrefix(info["cmdstat_"+command], "calls="), ",")
		return number(count)
	}
	return Server{
		Server: server, Up: true, Version: info["redis_version"],
		Started: time.Now().Add(-time.Duration(number(info["uptime_in_seconds"])) * time.Second).Truncate(time.Second),
		Items:   keysOf(info), Bytes: number(info["used_memory"]), MaxBytes: number(info["maxmemory"]),
		Evictions: number(info["evicted_keys"]), Flushes: calls("flushall") + calls("flushdb"), Conns: number(info["connected_clients"]),
	}
}

// keysOf returns the number of keys of an INFO, in all databases: db0:keys=3,expires=3,...
func keysOf(info map[string]string) (keys int64) {
	for name, text := range info {
		if strings.HasPrefix(name, "db") && strings.HasPrefix(text, "keys=") {
			count, _, _ := strings.Cut(strings.TrimPrefix(text, "keys="), ",")
			keys += number(count)
		}
	}
	return keys
}
