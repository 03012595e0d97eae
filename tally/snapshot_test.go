package tally_test

import (
	"encoding/json"
	"time"

	"github.com/adaptivethrottler/throttler/tally"
)

// What a program reads of a Tally's JSON.
type (
	Snapshot struct {
		Since, At time.Time
		Rules     []RuleCounts
		Logins    *LoginCounts
		Robots    []RobotCount
		Uncounted uint64
	}
	Counts struct {
		Calls      uint64 `json:"calls"`
		Authorized uint64 `json:"authorized"`
		Blocked    uint64 `json:"blocked"`
		WouldBlock uint64 `json:"would_block"`
		Overruled  uint64 `json:"overruled"`
		Banned     uint64 `json:"banned"`
		Failed     uint64 `json:"failed"`
		LostRaces  uint64 `json:"lost_races"`
	}
	RobotCount struct {
		Group, Standing string
		Requests        uint64
	}
	RuleCounts struct {
		Identifier string
		Counts
		Conditions []ConditionCounts
	}
	ConditionCounts struct {
		Name string
		Counts
		Values   []ValueCount
		Unlisted uint64
	}
	LoginCounts struct {
		Attempts, Succeeded, Failed, Refused, Canceled uint64
		WouldBlock                                     uint64 `json:"would_block"`
		Known                                          uint64
		FailedShare                                    float64 `json:"failed_share"`
		Errors                                         uint64
		Names, Addresses, Networks                     []ValueCount
		Unlisted                                       uint64
	}
	ValueCount struct {
		Value        string
		Count, Error uint64
	}
)

// snapshotOf returns the counts of t.
func snapshotOf(t *tally.Tally) (s Snapshot) {
	b, err := json.Marshal(t)
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		panic(err)
	}
	return s
}
