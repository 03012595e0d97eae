package main

import (
	"testing"

	"github.com/adaptivethrottler/throttler/examples/routers/internal/routertest"
)

func TestSiteIsLimited(t *testing.T) { routertest.Run(t, site) }
