package redisstore

// Slot returns the slot of a key.
var Slot = slot
