package deploy_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/adaptivethrottler/throttler/internal/servertest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/json"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// A cluster is what kubectl apply -k sends.
type cluster struct {
	deployment apps.Deployment
	stateful   apps.StatefulSet
	rules      core.ConfigMap
	services   []core.Service
	budgets    []policy.PodDisruptionBudget
	networks   []networking.NetworkPolicy
}

// manifests returns the cluster of the folder kubernetes, decoded strictly.
func manifests(t *testing.T) *cluster {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), "kubernetes")
	require.NoError(t, err)
	c := new(cluster)
	for _, r := range resources.Resources() {
		text, err := r.AsYAML()
		require.NoError(t, err)
		kind := r.GetKind()
		switch kind {
		case "Deployment":
			decode(t, text, &c.deployment)
		case "StatefulSet":
			decode(t, text, &c.stateful)
		case "ConfigMap":
			decode(t, text, &c.rules)
		case "Namespace":
			decode(t, text, new(core.Namespace))
		case "Service":
			c.services = append(c.services, *decode(t, text, new(core.Service)))
		case "PodDisruptionBudget":
			c.budgets = append(c.budgets, *decode(t, text, new(policy.PodDisruptionBudget)))
		case "NetworkPolicy":
			c.networks = append(c.networks, *decode(t, text, new(networking.NetworkPolicy)))
		default:
			require.Fail(t, "a kind without a type: "+kind)
		}
		if kind != "Namespace" {
			require.Equal(t, "throttler", r.GetNamespace(), r.GetName())
		}
	}
	return c
}

// decode decodes a manifest, which has no field that its type lacks, and none twice.
func decode[T runtime.Object](t *testing.T, text []byte, into T) T {
	t.Helper()
	require.NoError(t, unmarshal(text, into), "%s", text)
	return into
}

// unmarshal is yaml.UnmarshalStrict that takes clusterIp for no clusterIP, as Kubernetes does.
func unmarshal(text []byte, into any) error {
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return err
	}
	unknown, err := json.UnmarshalStrict(asJSON, into)
	return errors.Join(append(unknown, err)...)
}

func TestTheManifestsFitTogether(t *testing.T) {
	c := manifests(t)
	pods := map[string]*core.PodTemplateSpec{"throttler": &c.deployment.Spec.Template, "memcached": &c.stateful.Spec.Template}
	assert.Equal(t, c.deployment.Spec.Selector.MatchLabels, pods["throttler"].Labels)
	assert.Equal(t, c.stateful.Spec.Selector.MatchLabels, pods["memcached"].Labels)
	ports := func(pod string) (names []string) {
		for _, p := range pods[pod].Spec.Containers[0].Ports {
			names = append(names, p.Name)
		}
		return names
	}
	for name, pod := range pods {
		only := pod.Spec.Containers[0]
		require.Len(t, pod.Spec.Containers, 1)
		assert.True(t, *pod.Spec.SecurityContext.RunAsNonRoot, name)
		assert.True(t, *only.SecurityContext.ReadOnlyRootFilesystem, name)
		assert.False(t, *only.SecurityContext.AllowPrivilegeEscalation, name)
		assert.Positive(t, only.Resources.Requests.Cpu().MilliValue(), name)
		assert.Positive(t, only.Resources.Limits.Memory().Value(), name)
		require.NotNil(t, only.ReadinessProbe, name)
		require.NotNil(t, only.LivenessProbe, name)
	}
	for _, probe := range []*core.Probe{pods["throttler"].Spec.Containers[0].StartupProbe,
		pods["throttler"].Spec.Containers[0].LivenessProbe, pods["throttler"].Spec.Containers[0].ReadinessProbe} {
		assert.Contains(t, ports("throttler"), probe.HTTPGet.Port.StrVal)
	}

	require.Len(t, c.services, 2)
	for _, s := range c.services {
		require.Contains(t, pods, s.Name)
		assert.Equal(t, pods[s.Name].Labels, s.Spec.Selector)
		for _, p := range s.Spec.Ports {
			assert.Contains(t, ports(s.Name), p.Name)
			assert.NotEqual(t, "admin", p.Name, "operators alone reach it, pod by pod")
		}
	}
	require.Len(t, c.budgets, 2)
	for _, b := range c.budgets {
		assert.Equal(t, pods[b.Name].Labels, b.Spec.Selector.MatchLabels)
	}
	require.Len(t, c.networks, 2)
	for _, n := range c.networks {
		assert.Equal(t, pods[n.Name].Labels, n.Spec.PodSelector.MatchLabels)
		assert.Equal(t, []networking.PolicyType{"Ingress", "Egress"}, n.Spec.PolicyTypes)
		for _, rule := range n.Spec.Ingress {
			require.NotEmpty(t, rule.From, "not from everywhere")
			for _, p := range rule.Ports {
				assert.Contains(t, ports(n.Name), p.Port.StrVal)
			}
		}
	}
	drain := 10 * time.Second
	assert.Contains(t, pods["throttler"].Spec.Containers[0].Env, core.EnvVar{Name: "THROTTLER_DRAIN", Value: fmt.Sprint(drain)})
	assert.Greater(t, *pods["throttler"].Spec.TerminationGracePeriodSeconds, int64((drain + 10*time.Second).Seconds()))
	assert.Empty(t, pods["throttler"].Spec.Containers[0].VolumeMounts[0].SubPath, "a file that is mounted alone stays as it is")
	assert.Equal(t, c.rules.Name, pods["throttler"].Spec.Volumes[0].ConfigMap.Name)
}

func TestAManifestWithATypoIsRefused(t *testing.T) {
	text := []byte("apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {clusterIp: None}\n")
	assert.ErrorContains(t, unmarshal(text, new(core.Service)), "clusterIp")
}

// The rule file names each pod of memcached, and nothing else.
func TestTheRuleFileOfTheClusterNamesItsMemcached(t *testing.T) {
	c := manifests(t)
	text := c.rules.Data["rules.yaml"]
	var file struct{ Servers []string }
	require.NoError(t, yaml.Unmarshal([]byte(text), &file))
	var pods []string
	for i := range *c.stateful.Spec.Replicas {
		pods = append(pods, fmt.Sprintf("%s-%d.%s:11211", c.stateful.Name, i, c.stateful.Spec.ServiceName))
	}
	assert.Equal(t, pods, file.Servers)
	for _, path := range []string{write(t, "rules.yaml", text), "compose/rules/rules.yaml"} {
		output, err := exec.Command(command, "check", "-offline", path).CombinedOutput()
		assert.NoError(t, err, "%s", output)
	}
}

// A ConfigMap is mounted as links: rules.yaml to ..data/rules.yaml, ..data to a folder for each
// version. Kubernetes puts another link in the place of ..data.
func TestARuleFileOfAConfigMapIsReadWhenItsLinkIsSwapped(t *testing.T) {
	text := manifests(t).rules.Data["rules.yaml"]
	memcached := servertest.NewMemcached(t)
	mount := t.TempDir()
	publish := func(version, limit string) {
		folder := filepath.Join(mount, version)
		require.NoError(t, os.Mkdir(folder, 0o755))
		rules := replaced(t, text, "memcached-0.memcached:11211", memcached.Addr, "  - memcached-1.memcached:11211\n", "", "max: 300", "max: "+limit)
		require.NoError(t, os.WriteFile(filepath.Join(folder, "rules.yaml"), []byte(rules), 0o644))
		require.NoError(t, os.Symlink(version, filepath.Join(mount, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(mount, "..data_tmp"), filepath.Join(mount, "..data")))
	}
	publish("..1", "2")
	rules := filepath.Join(mount, "rules.yaml")
	require.NoError(t, os.Symlink("..data/rules.yaml", rules))
	s := serve(t, rules)
	asked := func(client string, n int) (statuses []int) {
		for range n {
			statuses = append(statuses, s.status(t, client))
		}
		return statuses
	}
	require.Equal(t, []int{200, 200, 429}, asked("203.0.113.1", 3))

	publish("..2", "4")
	require.NoError(t, os.RemoveAll(filepath.Join(mount, "..1")))
	require.Eventually(t, func() bool { return strings.Contains(s.log.String(), `msg="rules read"`) }, time.Minute, 20*time.Millisecond)
	require.Equal(t, []int{200, 200, 200, 200, 429}, asked("203.0.113.2", 5))

	publish("..3", "none")
	require.Eventually(t, func() bool { return strings.Contains(s.log.String(), "the rules stay as they are") }, time.Minute, 20*time.Millisecond)
	require.Equal(t, []int{200, 200, 200, 200, 429}, asked("203.0.113.3", 5))
}

// Every file of the folder is part of the kustomization.
func TestNoManifestIsLeftOut(t *testing.T) {
	var k struct {
		Resources          []string
		ConfigMapGenerator []struct{ Files []string }
	}
	require.NoError(t, yaml.Unmarshal([]byte(read(t, "kubernetes/kustomization.yaml")), &k))
	named := map[string]bool{"kustomization.yaml": true}
	for _, name := range slices.Concat(k.Resources, k.ConfigMapGenerator[0].Files) {
		named[name] = true
	}
	files, err := os.ReadDir("kubernetes")
	require.NoError(t, err)
	for _, f := range files {
		assert.Contains(t, slices.Collect(maps.Keys(named)), f.Name())
	}
}
