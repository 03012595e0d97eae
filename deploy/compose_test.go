package deploy_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/adaptivethrottler/throttler/internal/skiptest"
	"github.com/compose-spec/compose-go/v2/cli"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The loader of Docker Compose checks the file against its schema. What the services are made of
// is there.
func TestTheComposeFileIsOneThatComposeTakes(t *testing.T) {
	options, err := cli.NewProjectOptions([]string{"compose/compose.yaml"})
	require.NoError(t, err)
	project, err := options.LoadProject(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []string{"memcached", "nginx", "throttler"}, project.ServiceNames())
	for _, s := range project.Services {
		for _, v := range s.Volumes {
			assert.FileExists(t, firstFile(t, v.Source))
		}
	}
	build := project.Services["throttler"].Build
	assert.FileExists(t, filepath.Join(build.Context, build.Dockerfile))
}

// firstFile returns path, or the first file in it if it is a folder.
func firstFile(t *testing.T, path string) string {
	t.Helper()
	if files, err := os.ReadDir(path); err == nil {
		require.NotEmpty(t, files)
		return filepath.Join(path, files[0].Name())
	}
	return path
}

// The configurations of the services that compose starts, each as a process here.
func TestNginxOfTheComposeFileAsksTheService(t *testing.T) {
	nginx := skiptest.Program(t, "nginx", "nginx")
	memcached := servertest.NewMemcached(t)
	s := serve(t, write(t, "rules.yaml", replaced(t, read(t, "compose/rules/rules.yaml"), "memcached:11211", memcached.Addr)))
	address, err := servertest.FreeAddr(servertest.OtherPorts)
	require.NoError(t, err)
	site := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(site, "index.html"), []byte("Welcome"), 0o644))
	for _, folder := range []string{site, filepath.Dir(site)} {
		require.NoError(t, os.Chmod(folder, 0o755))
	}
	conf := write(t, "site.conf", replaced(t, read(t, "compose/nginx.conf"), "listen 8080", "listen "+address,
		"throttler:4180", s.listen, "/usr/share/nginx/html", site))
	main := write(t, "nginx.conf", fmt.Sprintf("daemon off; pid %s/pid; error_log stderr; events {} http { access_log off; include %s; }", filepath.Dir(conf), conf))
	c := exec.Command(nginx, "-p", filepath.Dir(conf), "-c", main, "-e", "stderr")
	var output lines
	c.Stdout, c.Stderr = &output, &output
	exited, err := servertest.Start(c)
	require.NoError(t, err)
	t.Cleanup(func() { c.Process.Signal(os.Interrupt); <-exited })
	status := func() int {
		answer, err := http.Get("http://" + address + "/")
		if err != nil {
			return 0
		}
		answer.Body.Close()
		return answer.StatusCode
	}
	require.Eventually(t, func() bool { return status() == 200 }, time.Minute, 20*time.Millisecond, &output)
	for range 19 {
		assert.Equal(t, 200, status())
	}
	assert.Equal(t, 429, status())
}
