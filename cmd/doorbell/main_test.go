// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/launch"
	"github.com/doorbell-net/doorbell/cmd/doorbell/internal/report"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// asDoorbell makes the test binary behave as the command, with a bench that does what the variable says.
const asDoorbell = "CMD_TEST_BENCH"

func TestMain(m *testing.M) {
	launch.Main()
	switch mode := os.Getenv(asDoorbell); mode {
	case "":
	case "real", "real and rank 1 dies":
		if mode != "real" && os.Getenv("DOORBELL_RANK") == "1" {
			time.AfterFunc(time.Second, func() { syscall.Kill(os.Getpid(), syscall.SIGKILL) })
		}
		os.Exit(cli(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	default:
		benchRunner = fakeBench
		os.Exit(cli(context.Background(), os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func fakeBench(ctx context.Context, name string, cfg benchConfig) (report.Result, error) {
	rank := os.Getenv("DOORBELL_RANK")
	row := report.Row{Bytes: 8, Ranks: cfg.Ranks, Nodes: 1, Net: "shm", Backend: "proxy", Device: "soft", Progress: "assisted", Iters: 1, P50US: 1, CheckedBytes: 8}
	r := report.Result{Rows: []report.Row{row}, Verified: true}
	switch mode := os.Getenv(asDoorbell); mode {
	case "ok":
		fmt.Println("a stray line") // on real standard output, it would spoil the object
		r.Rows[0].Label = fmt.Sprintf("seed %d", cfg.Seed)
	case "hosts":
		r.Host.Hosts = 3
	case "environ":
		l := cfg.me
		r.Rows[0].Label = fmt.Sprintf("rank %d of %d, local %d of %d, job %s", l.Rank, l.Size, l.LocalRank, l.LocalSize, l.Job)
	case "wrong":
		r.Verified, r.Error = false, "byte 3 is 1, want 2"
	case "error":
		if rank != "1" {
			return r, errors.New("wait for signal 0 of rank 1: timeout after 30s")
		}
		<-ctx.Done()
		return r, ctx.Err()
	case "cuda":
		return report.Result{}, unavailablef("no CUDA device")
	case "killed": // rank 1 dies; rank 0 notices only when it is told to end
		if rank == "1" {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		<-ctx.Done()
		return r, errors.New("rank 1 is lost")
	case "lost": // the launchers' part in it: rank 1 dies, rank 0 of another host sees it
		if rank == "1" {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return r, errors.New("wait for signal 0: rank 1 is lost")
	case "silent":
		os.Exit(0)
	default:
		return r, fmt.Errorf("no mode %q", mode)
	}
	return r, nil
}

// command runs the command in a process of its own.
func command(t *testing.T, mode string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return commandLine(t, mode, args...)()
}

// commandLine is command with the environment of now, to be run later. Its end is the code -1 where it did not end.
func commandLine(t *testing.T, mode string, args ...string) func() (code int, stdout, stderr string) {
	environ := append(os.Environ(), asDoorbell+"="+mode, "GORACE=atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	return func() (code int, stdout, stderr string) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		cmd := exec.CommandContext(ctx, os.Args[0], args...)
		cmd.Env = environ
		var out, errw bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errw
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) || ctx.Err() != nil {
			t.Errorf("%s %v: %v\n%s", mode, args, err, errw.String())
			return -1, "", errw.String()
		}
		return cmd.ProcessState.ExitCode(), out.String(), errw.String()
	}
}

func TestBenchProcesses(t *testing.T) {
	for _, c := range []struct {
		mode     string
		code     int
		verified bool
		want     string // in the object's error
		not      string
	}{
		{"ok", 0, true, "", ""},
		{"wrong", 1, false, "byte 3 is 1, want 2", "exit status"},
		{"error", 1, false, "wait for signal 0 of rank 1: timeout after 30s", "exit status"},
		{"cuda", 3, false, "no CUDA device", "exit status"},
		{"killed", 1, false, "rank 1 is lost; rank 1 (pid ", ""},
		{"silent", 1, false, "rank 0 handed over no result", ""},
	} {
		t.Run(c.mode, func(t *testing.T) {
			t.Parallel()
			code, out, errs := command(t, c.mode, "bench", "pingpong", "--json", "--seed", "7")
			r, err := report.Decode([]byte(out))
			if err != nil {
				t.Fatalf("%v in %q", err, out)
			}
			if code != c.code || r.Verified != c.verified || !strings.Contains(r.Error, c.want) || c.not != "" && strings.Contains(r.Error, c.not) {
				t.Errorf("exit %d, verified %v, error %q; want %d, %v, %q\n%s", code, r.Verified, r.Error, c.code, c.verified, c.want, errs)
			}
			if config, _ := json.Marshal(r.Config); r.Bench != "pingpong" || !bytes.Contains(config, []byte(`"seed":7`)) {
				t.Errorf("bench %q, config %s", r.Bench, config)
			}
			if strings.Count(out, "\n") != 1 {
				t.Errorf("not one line: %q", out)
			}
		})
	}
}

func TestBenchTable(t *testing.T) {
	dir := t.TempDir()
	plot := filepath.Join(dir, "p.svg")
	code, out, errs := command(t, "ok", "bench", "pingpong", "-n", "4", "--paper", "--plot", plot, "--seed", "9")
	for _, want := range []string{"doorbell bench pingpong\n", "ranks=4", "seed 9", "verified: yes (8 B compared)", "GIN-GDAKI", "no network"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if svg, err := os.ReadFile(plot); code != 0 || err != nil || !bytes.Contains(svg, []byte("(no network)")) {
		t.Errorf("exit %d, plot %v\n%s", code, err, errs)
	}
}

func TestBenchLocal(t *testing.T) {
	code, out, errs := command(t, "wrong", "bench", "bw", "--local", "-n", "3")
	if code != 1 || !strings.Contains(out, "verified: NO: byte 3 is 1, want 2") || strings.Contains(errs, "rank") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
}

// TestBenchUnderLauncher: the ranks that run started take their number from it, and only rank 0 prints.
func TestBenchUnderLauncher(t *testing.T) {
	code, out, errs := command(t, "cuda", "run", "-n", "2", "--", os.Args[0], "bench", "alltoall", "--json")
	if code != 1 || strings.Count(out, `"bench":"alltoall"`) > 1 || strings.Contains(out, "[1]") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
	code, out, errs = command(t, "wrong", "run", "-n", "1", "--", os.Args[0], "bench", "alltoall", "-n", "2")
	if code != 1 || !strings.Contains(errs, "the launcher has started 1 ranks") {
		t.Errorf("exit %d\n%s%s", code, out, errs)
	}
}

// TestBenchOfTwoHosts: each host starts its share with the same job and seed, and only node 0 prints.
func TestBenchOfTwoHosts(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	type end struct {
		code      int
		out, errs string
	}
	both := func(mode string) (ends [2]end) {
		var wg sync.WaitGroup
		for i := range ends {
			wg.Go(func() {
				e := &ends[i]
				e.code, e.out, e.errs = command(t, mode, "bench", "pingpong", "--json", "-n", "2", "--nodes", "2", "--node-rank", fmt.Sprint(i),
					"--rendezvous", "127.0.0.1:4711", "--token-file", token)
			})
		}
		wg.Wait()
		return ends
	}
	seeds := map[string]bool{}
	for range 2 {
		e := both("ok")
		r, err := report.Decode([]byte(e[0].out))
		if err != nil || !r.Verified || e[0].code != 0 || e[1].code != 0 || e[1].out != "" {
			t.Fatalf("%v: %+v", err, e)
		}
		if config, _ := json.Marshal(r.Config); !bytes.Contains(config, []byte(`"ranks":2`)) || !bytes.Contains(config, []byte(`"nodes":2`)) {
			t.Errorf("config %s", config)
		}
		seeds[r.Rows[0].Label] = true
	}
	if len(seeds) != 1 {
		t.Errorf("one job has the seeds %v", seeds)
	}
	e := both("lost")
	r, err := report.Decode([]byte(e[0].out))
	if err != nil || e[0].code != 1 || r.Verified || !strings.Contains(r.Error, "rank 1 is lost") || !strings.Contains(e[0].errs, "node 0: rank 0 (pid ") {
		t.Errorf("%v: %+v", err, e[0])
	}
	if e[1].code != 1 || e[1].out != "" || !strings.Contains(e[1].errs, "node 1: rank 1 (pid ") || !strings.Contains(e[1].errs, "killed by signal 9") {
		t.Errorf("%+v", e[1])
	}
}

// TestBenchSaysHowManyHosts: as the ranks found out; all else of the stamp is this machine's.
func TestBenchSaysHowManyHosts(t *testing.T) {
	for mode, want := range map[string]int{"hosts": 3, "ok": 1} {
		_, out, errs := command(t, mode, "bench", "pingpong", "--json")
		if r, err := report.Decode([]byte(out)); err != nil || r.Host.Hosts != want || r.Host.Go == "" {
			t.Errorf("%v: %+v, want %d hosts\n%s", err, r.Host, want, errs)
		}
	}
}

// asMPI makes this process one that mpirun started on its host.
func asMPI(t *testing.T, rank, size, localRank, localSize int) {
	for k, v := range map[string]int{"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": size, "OMPI_COMM_WORLD_LOCAL_RANK": localRank,
		"OMPI_COMM_WORLD_LOCAL_SIZE": localSize} {
		t.Setenv(k, fmt.Sprint(v))
	}
	t.Setenv("PMIX_NAMESPACE", fmt.Sprintf("ns7-%d", os.Getpid()))
}

// TestBenchOfMPI: two ranks that mpirun started run a verified bench, told who they are by its variables alone: on one
// host, and on two that meet by a file and have no token. Only rank 0 prints, and says which launcher it saw.
func TestBenchOfMPI(t *testing.T) {
	for _, hosts := range []int{1, 2} {
		if hosts == 2 {
			t.Setenv("DOORBELL_ADDR", "file:"+filepath.Join(t.TempDir(), "meet"))
		}
		type end struct {
			code      int
			out, errs string
		}
		var wg sync.WaitGroup
		ends := make([]end, 2)
		for r := range ends {
			asMPI(t, r, 2, r*(2-hosts), 3-hosts)
			run := commandLine(t, "real", "bench", "pingpong", "--json", "--net", "tcp", "--sizes", "8", "--iters", "50", "--timeout", "15s")
			wg.Go(func() { e := &ends[r]; e.code, e.out, e.errs = run() })
		}
		wg.Wait()
		r, err := report.Decode([]byte(ends[0].out))
		if err != nil || !r.Verified || ends[0].code != 0 || ends[1].code != 0 || ends[1].out != "" || r.Host.Hosts != 1 {
			t.Errorf("%d hosts: %v: %+v", hosts, err, ends)
		}
		if s := ends[0].errs; !strings.Contains(s, "launcher: openmpi (OMPI_COMM_WORLD_RANK=0, OMPI_COMM_WORLD_SIZE=2") || strings.Count(s, "launcher") > 2 ||
			strings.Contains(ends[1].errs, "launcher") || strings.Contains(s, "unauthenticated") != (hosts == 1) {
			t.Errorf("%d hosts: stderr %q and %q", hosts, s, ends[1].errs)
		}
	}
}

// TestBenchUnderAnotherLauncher: what its variables say counts.
func TestBenchUnderAnotherLauncher(t *testing.T) {
	asMPI(t, 0, 2, 0, 2)
	t.Setenv("PMIX_NAMESPACE", "ns7")
	code, out, errs := command(t, "environ", "bench", "pingpong", "--json")
	r, err := report.Decode([]byte(out))
	if err != nil || code != 0 || r.Rows[0].Label != "rank 0 of 2, local 0 of 2, job openmpi/ns7" {
		t.Errorf("exit %d, %v\n%s%s", code, err, out, errs)
	}
	if code, _, errs = command(t, "environ", "bench", "pingpong", "-n", "4"); code != 2 || !strings.Contains(errs, "started 2 ranks (launcher: openmpi") {
		t.Errorf("exit %d\n%s", code, errs)
	}
	t.Setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "1")
	if code, _, errs = command(t, "environ", "bench", "pingpong"); code != 2 || !strings.Contains(errs, "across hosts give DOORBELL_ADDR=HOST:PORT") {
		t.Errorf("exit %d\n%s", code, errs)
	}
}

func TestRun(t *testing.T) {
	code, out, errs := command(t, "x", "run", "-n", "2", "--", "/bin/echo", "-n", "--json", "--", "-x")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	slices.Sort(lines)
	if code != 0 || !slices.Equal(lines, []string{"[0] --json -- -x", "[1] --json -- -x"}) {
		t.Errorf("exit %d, %q\n%s", code, out, errs)
	}
	code, _, errs = command(t, "x", "run", "-n", "2", "/bin/sh", "-c", "exit $DOORBELL_RANK")
	if code != 1 || strings.Count(errs, "exit status 1 after") != 1 || !strings.Contains(errs, "doorbell run: rank 1 (pid ") {
		t.Errorf("exit %d\n%s", code, errs)
	}
}

func TestExitStatus(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"", 0, ""},
		{"version", 0, ""},
		{"run --help", 0, ""},
		{"nonsense", 2, `no command "nonsense"`},
		{"--nonsense", 2, "unknown flag"},
		{"version extra", 2, "extra"},
		{"run", 2, "no program"},
		{"run -- /bin/true", 2, "-n is needed"},
		{"run -n 0 -- /bin/true", 2, "from 1 to 4096"},
		{"run -n x -- /bin/true", 2, "invalid"},
		{"run -n 3 --ranks-per-node 2 -- /bin/true", 2, "must divide"},
		{"run -n 2 --nodes 2 -- /bin/true", 2, "--nodes 2: --rendezvous HOST:PORT or file:/PATH and --token-file FILE missing"},
		{"run -n 2 --nodes 2 --token-file x -- /bin/true", 2, "--nodes 2: --rendezvous HOST:PORT or file:/PATH missing"},
		{"run -n 2 --nodes 2 --rendezvous a:1 -- /bin/true", 2, "--nodes 2: --token-file FILE missing"},
		{"run -n 3 --nodes 2 -- /bin/true", 2, "multiple of --nodes 2"},
		{"run -n 4 --nodes 2 --node-rank 2 -- /bin/true", 2, "from 0 to 1"},
		{"run -n 4 --nodes 0 -- /bin/true", 2, "at least 1"},
		{"run -n 4 --rendezvous a:1 -- /bin/true", 2, "--nodes is 1"},
		{"run -n 6 --nodes 2 --ranks-per-node 2 --rendezvous a:1 --token-file x -- /bin/true", 2, "each host's share of the ranks, which is 3"},
		{"run -n 2 --nodes 2 --rendezvous a --token-file x -- /bin/true", 2, "accepted is HOST:PORT"},
		{"run -n 2 --nodes 2 --rendezvous a:0 --token-file x -- /bin/true", 2, "port from 1"},
		{"run -n 2 --nodes 2 --rendezvous 0.0.0.0:7 --token-file x -- /bin/true", 2, "cannot connect to it"},
		{"run -n 2 --nodes 2 --rendezvous a:7 --token-file " + dir + "/none -- /bin/true", 2, "no such file"},
		{"run -n 2 --nodes 2 --rendezvous file:here --token-file x -- /bin/true", 2, "or file:/path on storage"},
		{"run -n 2 --net s!m -- /bin/true", 2, "accepted are auto"},
		{"run -n 2 --backend x -- /bin/true", 2, "auto, proxy, gdaki"},
		{"run -n 2 --device x -- /bin/true", 2, "auto, soft, cuda"},
		{"run -n 2 -- " + dir + "/none", 2, "does not exist"},
		{"bench", 2, "say which"},
		{"bench nonsense", 2, `no bench "nonsense"`},
		{"bench pingpong extra", 2, "extra"},
		{"bench pingpong -n 1", 2, "at least 2 ranks"},
		{"bench pingpong --sizes 3..8", 2, "power of two"},
		{"bench pingpong --lsa maybe", 2, "on and off"},
		{"bench pingpong --inject fire", 2, "bitflip, lostput, doublesignal"},
		{"bench pingpong --timeout 0s", 2, "must be positive"},
		{"bench pingpong --plot x.pdf", 2, ".svg, .png or .html"},
		{"bench pingpong --progress x", 2, "auto, thread, assisted"},
		{"bench pingpong --gpus 2", 2, "--gpus 2: 1 to the 2 ranks' number are accepted, with --local"},
		{"bench pingpong --local --gpus 3", 2, "--gpus 3: 1 to the 2 ranks'"},
		{"bench pingpong --iters -1", 2, "--iters -1"},
		{"bench pingpong --nodes 2", 2, "missing; all hosts say the same"},
		{"bench pingpong --nodes 2 --local --rendezvous a:7 --token-file x", 2, "exclude each other"},
		{"bench pingpong --nodes 2 --rendezvous a:7 --token-file " + dir + "/none", 2, "no such file"},
		{"bench ll --topk 40", 2, "only 32 experts"},
		{"bench ll --tokens 1..100", 2, "from one power of two up to another"},
		{"bench ll --tokens 8,0", 2, "--tokens \"8,0\": 0: it must be from 1 to 1048576"},
		{"bench ll --gating hot", 2, "accepted uniform, zipf:S, groups:GROUPS:KEEP"},
		{"bench ll --wire token", 2, "expert, rank"},
		{"bench ht --tokens 8,0", 2, "--tokens \"8,0\": 0"},
		{"bench ht --gating hot", 2, "accepted uniform"},
		{"bench ht --form tree", 2, "slots, rings"},
		{"bench ht --form rings --ring 1", 2, "it must be 2 or more"},
		{"bench ll --dtype f64", 2, "bf16, fp8"},
		{"bench coll", 3, "not built yet"},
		{"bench fused -n 1", 2, "at least 2 ranks"},
		{"bench fused --sizes 4K,6K", 2, "6144: multiples of 4096"},
		{"bench fused --sizes 0", 2, "0: multiples of 4096"},
		{"bench coll --op allgather", 3, "not built yet"},
		{"doctor extra", 2, "extra"},
		{"doctor -n 0", 2, "from 1 to 4096"},
		{"doctor --rendezvous node0", 2, "accepted is HOST:PORT"},
		{"top", 3, "not built yet"},
		{"trace", 3, "not built yet"},
		{"explain", 3, "not built yet"},
	} {
		var out, errs bytes.Buffer
		code := cli(context.Background(), strings.Fields(c.args), &out, &errs)
		if code != c.code || !strings.Contains(errs.String(), c.want) {
			t.Errorf("doorbell %s: exit %d, want %d with %q\n%s", c.args, code, c.code, c.want, errs.String())
		}
	}
}

// TestDoctor: the exit status says whether something that is needed is missing, and --json is one object.
func TestDoctor(t *testing.T) {
	t.Setenv("DOORBELL_INTERFACES", "")
	t.Setenv("DOORBELL_TOKEN", "")
	t.Setenv("DOORBELL_TOKEN_FILE", "")
	for _, c := range []struct {
		args, interfaces string
		code             int
		want             string
	}{
		{"doctor", "", 0, "ok: nothing that is needed is missing"},
		{"doctor --json -n 1", "", 0, `"ok":true`},
		{"doctor --rendezvous 127.0.0.1:4711", "", 1, "token"}, // there is none
		{"doctor --json --rendezvous 127.0.0.1:4711", "", 1, `"ok":false`},
		{"doctor --json", "no-such-interface", 1, "fits none of"}, // no rank would start
		{"doctor", "10.0.0.0/99", 2, ""},
	} {
		t.Setenv("DOORBELL_INTERFACES", c.interfaces)
		var out, errs bytes.Buffer
		code := cli(context.Background(), strings.Fields(c.args), &out, &errs)
		if code != c.code || !strings.Contains(out.String(), c.want) || code < 2 && errs.Len() > 0 || code == 2 && !strings.Contains(errs.String(), "DOORBELL_INTERFACES") {
			t.Errorf("%s with %q: exit %d (want %d)\n%s%s", c.args, c.interfaces, code, c.code, out.String(), errs.String())
		}
		var report struct{ Checks []struct{ Name string } }
		if strings.Contains(c.args, "--json") && (json.Unmarshal(out.Bytes(), &report) != nil || len(report.Checks) < 10) {
			t.Errorf("%s: %s", c.args, out.String())
		}
	}
}

// TestJSONAlsoWhenCalledWrongly: a script that asked for an object gets exactly one.
func TestJSONAlsoWhenCalledWrongly(t *testing.T) {
	for _, args := range []string{"bench coll --json", "bench bw --nonsense --json", "bench pingpong --json --sizes x", "bench nonsense --json"} {
		var out, errs bytes.Buffer
		code := cli(context.Background(), strings.Fields(args), &out, &errs)
		r, err := report.Decode(out.Bytes())
		if err != nil || code < 2 || r.Verified || r.Error == "" {
			t.Errorf("%s: exit %d, %v: %s", args, code, err, out.String())
		}
	}
}

func TestHelpGolden(t *testing.T) {
	var all strings.Builder
	for _, args := range []string{"", "run", "bench", "bench pingpong", "bench ll", "bench fused", "bench coll", "doctor"} {
		var out, errs bytes.Buffer
		if code := cli(context.Background(), append(strings.Fields(args), "--help"), &out, &errs); code != 0 || errs.Len() > 0 {
			t.Errorf("%s --help: exit %d\n%s", args, code, errs.String())
		}
		fmt.Fprintf(&all, "$ doorbell %s --help\n%s\n", args, out.String())
	}
	path := filepath.Join("testdata", "help.txt")
	if *update {
		if err := os.WriteFile(path, []byte(all.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if all.String() != string(want) {
		t.Errorf("help differs from %s; run with -update if that is meant. got:\n%s", path, all.String())
	}
}
