// Package sqlstore keeps the records of a throttler in a table of a SQL database.
// docs/stores.md says what a store must do.
//
// It is an example, not a package to import: a SQL database spends a disk write on each
// decision. Its SQL is that of SQLite and PostgreSQL (with $1 in place of ?, and BYTEA). In
// MySQL use VARBINARY for the name, since its text compares without case, and INSERT ... ON
// DUPLICATE KEY UPDATE with a condition.
package sqlstore
