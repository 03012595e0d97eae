package ops

var NewState = newState
