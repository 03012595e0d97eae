package main

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
)

// This file measures clients that share values: each has connections, memory and callers of
// its own, as each process of a fleet has. What one of them remembers of a value, another
// one has changed since.

const (
	fleetClients = 8
	fleetCallers = 8 // of each client
)

var fleetSystems = []system{
	fleetOf(poolWindow), fleetOf(poolBucket), fleetOf(redisWindow), fleetOf(redisBucket),
	fleetOf(rueidisBucket), fleetOf(rueidisLog), fleetOf(redisRate),
}

// fleetOf returns s, opened once for each client.
func fleetOf(s system) system {
	open := s.open
	s.open = func(e env, l limit) (limiter, error) {
		f := new(fleet)
		for range fleetClients {
			one, err := open(e, l)
			if err != nil {
				f.close()
				return nil, err
			}
			f.clients = append(f.clients, one)
		}
		return f, nil
	}
	return s
}

// A fleet is limiters that have their records in the same place.
type fleet struct {
	clients []limiter
	next    atomic.Int64
}

// caller returns a caller of each client in turn.
func (f *fleet) caller() func(string) (bool, error) {
	return f.clients[int(f.next.Add(1)-1)%len(f.clients)].caller()
}

func (f *fleet) flush() {
	for _, one := range f.clients {
		one.flush()
	}
}

func (f *fleet) close() {
	for _, one := range f.clients {
		one.close()
	}
}

// playFleet plays works whose values all clients ask for.
func (st *stage) playFleet(ctx context.Context, _ options, out io.Writer) error {
	byWork := make(map[string][]result)
	shared := []work{spread, hot, full}
	for _, w := range shared {
		played, err := st.playAll(ctx, w, fleetSystems, []int{fleetClients * fleetCallers})
		if err != nil {
			return err
		}
		byWork[w.name] = played[0]
	}
	if len(byWork[spread.name]) > 0 {
		fleetTable(shared, byWork).write(out)
	}
	return nil
}

// fleetTable has the results of each of works, by their names.
func fleetTable(works []work, results map[string][]result) table {
	t := table{
		title: "Clients that share values",
		note: fmt.Sprintf("%d clients, each with its own connections and %d callers, as in %d processes. "+
			"The ratio is that of the times of a decision to those of the faster script by rueidis: medians of the rounds (quartiles).",
			fleetClients, fleetCallers, fleetClients),
		head: []string{"limiter", "algorithm"},
	}
	for _, w := range works {
		t.head = append(t.head, w.name+": µs", "p99, µs", "client's CPU, µs", "round trips", "ratio")
	}
	for i, first := range results[works[0].name] {
		row := []string{first.system.name, first.system.how}
		for _, w := range works {
			r := results[w.name][i]
			cell := "-"
			if best, found := better(results[w.name], rueidisBucket, rueidisLog); found {
				cell = beside(r, best).String()
			}
			row = append(row, inMicros(r.median(round.each)), inMicros(r.median(round.tail)), inMicros(r.median(round.cpuEach)), short(r.trips), cell)
		}
		t.rows = append(t.rows, row)
	}
	return t
}
