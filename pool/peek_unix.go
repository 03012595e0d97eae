//go:build unix && !aix && !solaris && !illumos

package pool

import "syscall"

// peek returns what [waiting] does.
func peek(fd uintptr) error {
	var b [1]byte
	n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	switch {
	case err == syscall.EAGAIN, err == syscall.EINTR:
		return nil
	case err == nil && n > 0:
		return errUnasked
	default:
		return errGone
	}
}
