// SPDX-License-Identifier: Apache-2.0

package model

import "fmt"

const actorNet = maxProducers + maxDrivers

// step is one transition, small enough to be made for each successor; its words are made only for a trace.
type step struct {
	actor uint8
	op    opcode
	a, b  uint8
}

type opcode uint8

// maxOpcodes bounds the kinds of step of a protocol.
const maxOpcodes = 64

// next is a successor: the state, what led to it, and the rule it breaks, if any.
type next[S any] struct {
	state S
	step  step
	bad   string
}

// forks collects the successors of a state.
type forks[S any] struct{ out []next[S] }

func (f *forks[S]) fork(s *S, st step) *S {
	f.out = append(f.out, next[S]{state: *s, step: st})
	return &f.out[len(f.out)-1].state
}

// fail says that the last step breaks a rule.
func (f *forks[S]) fail(format string, args ...any) {
	n := &f.out[len(f.out)-1]
	if n.bad == "" {
		n.bad = fmt.Sprintf(format, args...)
	}
}

// text is a line of a trace: who, and what, in a format that may use the step's two values.
func (st step) text(actors, ops []string) string {
	what := fmt.Sprintf(ops[st.op]+"%[3]s", st.a, st.b, "")
	return fmt.Sprintf("%-10s  %s", actors[st.actor], what)
}

// The kinds of step of the queue.
const (
	opShow opcode = iota
	opLoadTicket
	opFetchAdd
	opLoadCredit
	opRefresh
	opRetry
	opTimeout
	opAborted
	opLostTicket
	opPost
	opFlushBegin
	opFlushEnd
	opAwake
	opTakeAsleep
	opWake
	opCrash
	opLock
	opUnlock
	opHintLook
	opSweepLook
	opRead
	opReadCell
	opEmpty
	opCopy
	opTake
	opRaise
	opBudget
	opNote
	opDeclare
	opLocal
	opDeliver
	opSetAsleep
	opFence
	opBusy
	opSleep
	opNoSleep
	opBackstop
)

// opText has one format per opcode; %[1] and %[2] stand for the step's values.
var opText = []string{
	opLoadTicket: "reads ticket = %[1]d",
	opFetchAdd:   "takes ticket %[1]d by fetch-add",
	opLoadCredit: "reads cached credit = %[1]d",
	opRefresh:    "reads the proxy's index = %[1]d, so credit = %[2]d",
	opRetry:      "sees no room and tries again",
	opTimeout:    "sees no room and gives up: Timeout",
	opAborted:    "ends with Aborted",
	opLostTicket: "loses ticket %[1]d to another producer",
	opPost:       "takes ticket %[1]d and issues its slot's words and hint (none visible yet)",
	opFlushBegin: "begins a flush of all tickets before %[1]d",
	opFlushEnd:   "sees the index at %[1]d: flush returns OK",
	opAwake:      "reads asleep = 0",
	opTakeAsleep: "reads asleep = 1 and sets it to 0",
	opWake:       "calls wake",
	opCrash:      "dies before all words of ticket %[1]d are stored",
	opLock:       "takes the lock",
	opUnlock:     "gives the lock back",
	opHintLook:   "sees hint = %[1]d and looks at head %[2]d",
	opSweepLook:  "comes to head %[1]d on its sweep",
	opRead:       "reads word %[1]d of ticket %[2]d's slot: phase as expected, kept",
	opReadCell:   "reads the cell of ticket %[1]d",
	opEmpty:      "reads word %[1]d of ticket %[2]d's slot: not there yet, leaves it",
	opCopy:       "copies word %[1]d of ticket %[2]d's slot",
	opTake:       "takes descriptor %[1]d",
	opRaise:      "raises the signal of ticket %[1]d",
	opBudget:     "ends the pass by its budget",
	opNote:       "notices that put %[1]d is locally complete",
	opDeclare:    "declares the queue dead at ticket %[1]d",
	opLocal:      "has read the source of put %[1]d",
	opDeliver:    "places the payload of put %[1]d",
	opSetAsleep:  "sets asleep = 1",
	opFence:      "passes the fence and looks once more",
	opBusy:       "finds the lock taken",
	opSleep:      "sleeps",
	opNoSleep:    "finds asleep = 0 and does not sleep",
	opBackstop:   "wakes by its backstop",
}

var actorText = []string{"producer 0", "producer 1", "producer 2", "thread", "assistant", "network"}

var locText = [...]string{"ticket", "credit", "hint", "consumed", "completed", "lock", "asleep", "abort", "NET"}

// String names the word as a trace does.
func (l loc) String() string {
	switch {
	case l < locPayload:
		return locText[l]
	case l < locSlot:
		return fmt.Sprintf("payload of put #%d", l-locPayload)
	default:
		return fmt.Sprintf("slot %d word %d", (l-locSlot)/maxWords, (l-locSlot)%maxWords)
	}
}

func (m *machine) describe(st step) string {
	if st.op != opShow {
		return st.text(actorText, opText)
	}
	l := loc(st.a)
	if l >= locSlot {
		return fmt.Sprintf("%-10s  . %v becomes visible (of ticket %d)", actorText[st.actor], l, m.ticketOf(st.b-1))
	}
	return fmt.Sprintf("%-10s  . %v becomes visible (%d)", actorText[st.actor], l, st.b)
}

// summary is the line that ends a trace: what everybody can see.
func (m *machine) summary(s *state) string {
	text := fmt.Sprintf("ticket %d, credit %d, hint %d, consumed %d, completed %d, head %d, signal %d; slots",
		s.mem[locTicket], s.mem[locCredit], s.mem[locHint], s.mem[locConsumed], s.mem[locCompleted], m.ticketOf(s.head), s.mem[locNet])
	for d := range m.cfg.Depth {
		text += " ["
		for w := range m.cfg.parts() {
			if v := s.mem[m.word(d, w)]; v != 0 {
				text += fmt.Sprintf(" %d", m.ticketOf(v-1))
			} else {
				text += " -"
			}
		}
		text += " ]"
	}
	for p, prog := range m.cfg.Programs {
		switch {
		case s.prod[p].pc == uint8(pDead):
			text += fmt.Sprintf("; producer %d dead", p)
		case int(s.prod[p].op) == len(prog):
			text += fmt.Sprintf("; producer %d done", p)
		default:
			text += fmt.Sprintf("; producer %d in operation %d (%c)", p, s.prod[p].op, prog[s.prod[p].op])
		}
	}
	if s.drv[0].pc == uint8(dAsleep) {
		text += "; thread asleep"
	}
	return text
}
