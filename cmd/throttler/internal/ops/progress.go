package ops

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// A progress shows a progress bar on a terminal.
type progress struct {
	out  io.Writer
	what string

	mu          sync.Mutex
	done, total int
	shown       time.Time
}

// newProgress returns a progress that is shown on out, or nowhere if that is nil.
func newProgress(out io.Writer, what string) *progress {
	if out == nil {
		out = io.Discard
	}
	return &progress{out: out, what: what, shown: time.Now()}
}

// expect adds n to the total.
func (p *progress) expect(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total += n
}

// add adds n to what is done.
func (p *progress) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	if now := time.Now(); now.Sub(p.shown) >= 100*time.Millisecond {
		p.shown = now
		p.show()
	}
}

const barWidth = 30

// show draws the bar. p.mu is held.
func (p *progress) show() {
	if p.total <= 0 {
		fmt.Fprintf(p.out, "\r%d %s", p.done, p.what)
		return
	}
	part := min(float64(p.done)/float64(p.total), 1)
	filled := int(part * barWidth)
	fmt.Fprintf(p.out, "\r[%s%s] %3.0f %% of %d %s", strings.Repeat("#", filled), strings.Repeat(".", barWidth-filled), 100*part, p.total, p.what)
}

// end removes the bar.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprint(p.out, "\r\x1b[K")
}
