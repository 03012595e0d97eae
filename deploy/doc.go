// Package deploy has the tests of the files beside it: an image, manifests for Kubernetes, a
// file for compose, and a dashboard for Grafana.
package deploy
