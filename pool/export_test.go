package pool

// Place returns the name of the server that key belongs to.
func (p *Pool) Place(key string) string { return p.servers.of(key).name }
