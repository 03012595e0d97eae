package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// processTime returns the processor time of this process, in user and kernel
// mode.
func processTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// processTimeOf returns the processor time of another process, in user and kernel mode.
func processTimeOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from the third on
	user, err1 := strconv.Atoi(fields[11])
	kernel, err2 := strconv.Atoi(fields[12])
	const tick = 10 * time.Millisecond // USER_HZ, 100 on all machines that Go runs on
	return time.Duration(user+kernel) * tick, errors.Join(err1, err2)
}
