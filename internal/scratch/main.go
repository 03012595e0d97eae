package main

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime/pprof"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/adaptivethrottler/throttler"
	"github.com/adaptivethrottler/throttler/memstore"
	"github.com/adaptivethrottler/throttler/pool"
)

func main() {
	callers := flag.Int("c", 64, "")
	values := flag.Int("v", 4000, "")
	n := flag.Int("n", 300000, "")
	prof := flag.String("p", "", "")
	mem := flag.Bool("mem", false, "")
	can := flag.Bool("ctx", false, "")
	flag.Parse()
	var th *throttler.Throttler
	if *mem {
		th = throttler.New(memstore.New())
	} else {
		sock := fmt.Sprintf("/tmp/scratch%d.sock", os.Getpid())
		cmd := exec.Command("memcached", "-u", "root", "-s", sock, "-t", "2")
		cmd.Start()
		defer cmd.Process.Kill()
		time.Sleep(200 * time.Millisecond)
		p, err := pool.New(sock)
		if err != nil {
			panic(err)
		}
		th = throttler.New(p)
	}
	keys := make([]string, *values)
	for i := range keys {
		keys[i] = "user" + strconv.Itoa(i)
	}
	ctx := context.Background()
	if *can {
		c, cancel := context.WithTimeout(ctx, time.Hour)
		defer cancel()
		ctx = c
	}
	run := func(n int) {
		var wg sync.WaitGroup
		for range *callers {
			wg.Go(func() {
				for range n / *callers {
					r := throttler.Rule{Identifier: "x", Either: []throttler.Condition{{Name: "u", Value: keys[rand.IntN(len(keys))], Max: 1000, TTL: 100 * time.Millisecond}}}
					d, err := th.Authorize(ctx, r)
					if err != nil || d.Err != nil {
						fmt.Println(err, d.Err)
					}
				}
			})
		}
		wg.Wait()
	}
	run(*n / 10)
	if *prof != "" {
		f, _ := os.Create(*prof)
		pprof.StartCPUProfile(f)
		defer pprof.StopCPUProfile()
	}
	var a, b syscall.Rusage
	syscall.Getrusage(0, &a)
	s := time.Now()
	run(*n)
	d := time.Since(s)
	syscall.Getrusage(0, &b)
	cpu := time.Duration(b.Utime.Nano() + b.Stime.Nano() - a.Utime.Nano() - a.Stime.Nano())
	fmt.Printf("%v a decision, cpu %v, %+v\n", d/time.Duration(*n), cpu/time.Duration(*n), th.Stats())
}
