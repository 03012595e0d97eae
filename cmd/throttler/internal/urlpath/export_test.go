package urlpath

const MaxText = maxText

var Closure = closure
