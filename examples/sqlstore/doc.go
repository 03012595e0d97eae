// Package sqlstore keeps the records of a throttler in a table of a SQL database.
// docs/stores.md shows it.
package sqlstore
