// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/launch"
	"github.com/doorbell-net/doorbell/internal/env"
	"github.com/doorbell-net/doorbell/internal/netif"
)

func interfaces(ctx context.Context, m *Machine, o Options) Result {
	needed := o.Rendezvous != "" || o.Interfaces != "" // a filter that leaves nothing ends every job
	name := env.Interfaces.Name()
	target := o.Rendezvous
	if strings.HasPrefix(target, filePrefix) {
		target = ""
	}
	all, err := m.Interfaces()
	if err != nil {
		return Result{Missing, needed, err.Error(), "allow this process to list interfaces"}
	}
	kept, err := netif.Select(all, o.Interfaces)
	if err == nil {
		_, err = netif.Choose(all, o.Interfaces)
	}
	if err != nil {
		how := "bring an interface up, with an address of more than its link"
		if o.Interfaces != "" {
			how += ", or correct " + name
		}
		return Result{Missing, needed, err.Error(), how}
	}
	tries := m.Try(ctx, kept, target, m.Bound)
	loop := map[string]bool{}
	for _, x := range kept {
		loop[x.Name] = x.Loopback
	}
	others := slices.ContainsFunc(tries, func(a netif.Attempt) bool { return !loop[a.Interface] })
	outside := slices.ContainsFunc(tries, func(a netif.Attempt) bool { return a.Answered && !loop[a.Interface] })
	answered, silent := 0, 0
	var lines []string
	for _, x := range kept {
		if why := x.Lacks(); why != "" {
			lines = append(lines, x.Name+" "+why+", not used")
		}
		for _, a := range tries {
			if a.Interface != x.Name || loop[a.Interface] && others { // what loopback reaches is this host
				continue
			}
			line := fmt.Sprintf("%s %s, MTU %d: ", x.Name, a.From, x.MTU)
			switch {
			case a.Refused:
				line += a.To + " is reached; nobody listens there yet"
			case a.Answered && loop[a.Interface] && target == "":
				line += "this host alone"
			case a.Answered && target == "":
				line += "usable"
			case a.Answered:
				line += a.To + " answers"
			case a.Err != nil:
				line += a.Err.Error()
			}
			switch {
			case a.Answered:
				answered++
			case !errors.Is(a.Err, netif.ErrFamily): // who has one family only is reached by the other
				silent++
			}
			lines = append(lines, line)
		}
	}
	r := Result{OK, needed, strings.Join(lines, "\n"), ""}
	switch {
	case answered == 0, target != "" && !outside && silent > 0:
		r.Verdict, r.How = Missing, "check cable, address, route and firewall; "+name+" names the interfaces to use"
	case silent > 0:
		r.Verdict, r.How = Limited, "check route and firewall, or leave an interface out: "+name+"=^NAME"
	case !outside:
		r.Verdict, r.How = Limited, "only loopback answers: bring up an interface that other hosts reach"
	case target == "":
		r.How = "give --rendezvous HOST:PORT to see whether another host is reached from each"
	}
	return r
}

// filePrefix begins a rendezvous that is a file.
const filePrefix = "file:"

// slow is how long a name may take to resolve before it is worth a word.
const slow = time.Second

func rendezvous(ctx context.Context, m *Machine, o Options) Result {
	if o.Rendezvous == "" {
		return Result{}
	}
	if path, ok := strings.CutPrefix(o.Rendezvous, filePrefix); ok {
		return place(m, path)
	}
	host, _, err := net.SplitHostPort(o.Rendezvous)
	if err != nil {
		return Result{Missing, true, err.Error(), "give it as HOST:PORT"}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, m.Bound, fmt.Errorf("no answer within %v", m.Bound))
	defer cancel()
	start := time.Now()
	ips, err := m.Lookup(ctx, "ip", host)
	took := time.Since(start)
	if err == nil && len(ips) == 0 {
		err = fmt.Errorf("%s has no address", host)
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return Result{Missing, true, fmt.Sprintf("resolve %s: %v", host, err), "correct the name, or DNS or /etc/hosts, or give an address"}
	}
	var texts []string
	ours, loop := false, true
	all, _ := m.Interfaces() // without them nothing is known to be ours
	for _, ip := range ips {
		ip = ip.Unmap()
		texts = append(texts, ip.String())
		loop = loop && ip.IsLoopback()
		ours = ours || slices.ContainsFunc(all, func(x netif.Interface) bool { return slices.Contains(x.Addrs, ip) })
	}
	r := Result{OK, true, o.Rendezvous + " is " + strings.Join(texts, " and "), ""}
	if _, err := netip.ParseAddr(host); err == nil {
		r.Found = o.Rendezvous
	}
	if ours || loop {
		r.Found += ", this host: rank 0 listens here"
	}
	switch {
	case loop:
		r.Verdict, r.How = Limited, "other hosts cannot reach loopback: give an address of an interface, or correct /etc/hosts"
	case took > slow:
		r.Found += fmt.Sprintf(" (resolved in %v)", took.Round(100*time.Millisecond))
		r.Verdict, r.How = Limited, "DNS is slow: correct it, or give an address"
	}
	return r
}

const minToken = 16 // bytes that nobody guesses

func token(_ context.Context, m *Machine, o Options) Result {
	needed := o.Rendezvous != ""
	file := o.TokenFile
	if file == "" && env.Token.IsSet(m.Env) {
		return Result{OK, needed, env.Token.Name() + " is set", ""}
	}
	if file == "" && env.TokenFile.IsSet(m.Env) {
		var err error
		if file, err = env.TokenFile.Get(m.Env); err != nil {
			return Result{Missing, true, err.Error(), ""}
		}
	}
	if file == "" {
		how := "(umask 077; head -c 32 /dev/urandom | base64 > FILE), copy it to each host, and give --token-file FILE"
		if needed {
			return Result{Missing, true, "none given, and the job is of several hosts", how}
		}
		return Result{OK, false, "none given: \"doorbell run\" makes one for each job of this host", ""}
	}
	text, err := launch.ReadToken(file)
	switch {
	case err != nil:
		return Result{Missing, true, err.Error(), "a file of mode 0600 that belongs to you, with a secret text"}
	case len(text) < minToken:
		return Result{Limited, true, fmt.Sprintf("%s, only %d bytes", file, len(text)), "head -c 32 /dev/urandom | base64 makes one that nobody guesses"}
	}
	return Result{OK, needed, file + ", which only you can read", ""}
}
