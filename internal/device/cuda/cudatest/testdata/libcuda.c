// SPDX-License-Identifier: Apache-2.0
//
// A test double of the NVIDIA driver: the functions that package cuda calls, over host memory, a thread for each stream. It
// runs no PTX: it hands each kernel that comes to the head of its stream to the test (double_take), which runs the Go
// function and says how it ended (double_done). It behaves as the driver was seen to where that matters: what waits for
// kernels waits, and is counted; an error of a kernel sticks to the process; a context is of a thread. Device memory faults
// when the host touches it while no kernel and no copy is under way.
//
// double_* are the test's: they set what is there, make calls fail, and say what was called.

#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

typedef uint32_t R;
typedef uint64_t u64;

enum { OK = 0, INVALID = 1, OOM = 2, NOT_INIT = 3, NO_DEVICE = 100, BAD_DEVICE = 101, BAD_CONTEXT = 201, NO_BINARY = 209, BAD_PTX = 218, BAD_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, PEER_TWICE = 704, TOO_LARGE = 720, CAPTURE = 900 };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turn = PTHREAD_COND_INITIALIZER; // something ended, came or changed
static __thread struct ctx* current;

static struct {
	u64 devices, version, memory, smems, mode, peer, warp, streammem, sms, vmm, held, multicast, rdma;
} conf;
static R sticky;        // of the process
static u64 used;        // device memory
static u64 waited;      // calls that waited for a kernel
static u64 null_stream; // uses of the NULL stream, and of streams that were destroyed
static u64 reaching;    // kernels and copies under way
static u64 streams;     // not destroyed
static u64 within;      // copies within the device memory of a GPU, which a kernel may do
static u64 between;     // copies from one GPU's device memory to another's
static char environment[256];
static u64 host_table;  // the address that a module of a checked build was given last

// ctx is a GPU's primary context. Its calls wait for its own kernels alone.
struct ctx {
	int dev, refs;
	unsigned peers; // GPUs whose memory it reaches
	u64 running;    // kernels under way
	u64 stack;      // bytes of local memory a thread that it holds
};
static struct ctx contexts[8];

// A mem's kind: of cuMemAlloc, of cuMemHostAlloc, registered, reserved without anything there, mapped, and mapped with access.
enum { DEVICE, HOST, REGISTERED, RESERVED, MAPPED, SHARED };
struct mem { u64 addr, bytes; int host; struct ctx* ctx; struct phys* phys; struct mem* next; };
static struct mem* memories;

// phys is memory that processes share: a file, so that another process with a double of its own can map it.
// A multicast object is one too; how many GPUs it has, and how many have joined, is at the file's start, for all processes.
struct phys { int fd, refs, own, dev; u64 bytes; struct phys* bound; };
static u64 handles; // of those, not released
enum { GRAIN = 2 << 20 };

struct module { struct module* next; int entries; struct entry { char name[128]; u64 args; struct module* m; } entry[64]; };

struct op { int kind; u64 a, b, n; struct ctx* ctx; struct entry* k; unsigned blocks, threads; int cooperative; char args[4096]; struct op* next; };
struct stream { struct op *head, *tail; int ending; pthread_t thread; struct stream* next; int pending; struct graph* recording; };
struct graph { int broken, n; struct op ops[256]; };
static u64 graphs; // recorded and made
enum { KERNEL, COPY, FILL, WRITE, WAIT };

struct taken { u64 id, blocks, threads, cooperative, bytes; char name[128]; char args[4096]; };
struct job { u64 id; struct op* op; int taken, done; R result; struct job* next; };
static struct job* jobs;
static u64 next_id = 1;

static int of_device(struct mem* m) { return m->host == DEVICE || m->host == SHARED; }

// gpu_of is which GPU's device memory is.
static int gpu_of(struct mem* m) { return m->host == SHARED ? m->phys->dev : m->ctx->dev; }

// protect keeps device memory from all but kernels and copies.
static void protect(struct mem* m) {
	if (of_device(m) && mprotect((void*)m->addr, m->bytes, reaching ? PROT_READ | PROT_WRITE : PROT_NONE)) abort();
}

static void release(struct mem* m) {
	if (!m->host) used -= m->bytes;
	munmap((void*)m->addr, m->bytes), free(m);
}

// reach tells of one more kernel or copy under way, or one less.
static void reach(int more) {
	u64 before = reaching;
	reaching += (u64)more;
	if (!before == !reaching) return;
	for (struct mem* m = memories; m; m = m->next) protect(m);
}

// What is called, and what is to fail.
struct count { char name[64]; u64 calls, fail_at; R code; };
static struct count counts[64];

static struct count* count(const char* name) {
	for (int i = 0; i < 64; i++) {
		if (!counts[i].name[0]) snprintf(counts[i].name, sizeof counts[i].name, "%s", name);
		if (!strcmp(counts[i].name, name)) return &counts[i];
	}
	abort();
}

static void deadline(struct timespec* t, u64 ms) {
	clock_gettime(CLOCK_REALTIME, t);
	t->tv_sec += ms / 1000;
	t->tv_nsec += ms % 1000 * 1000000;
	if (t->tv_nsec >= 1000000000) t->tv_sec++, t->tv_nsec -= 1000000000;
}

// enter begins each call: it holds mu, counts, and gives the error that was ordered, or that sticks.
static R enter(const char* name, int needs_context) {
	pthread_mutex_lock(&mu);
	struct count* c = count(name);
	c->calls++;
	if (c->fail_at && --c->fail_at == 0) return c->code;
	if (!needs_context) return OK;
	if (sticky) return sticky;
	if (!current || !current->refs) return BAD_CONTEXT;
	return OK;
}
static R leave(R r) { pthread_mutex_unlock(&mu); return r; }
#define BEGIN(ctx) R r_ = enter(__func__, ctx); if (r_) return leave(r_)
#define END return leave(OK)

// wait_for_kernels is what calls do that wait for them: thirty seconds at most.
static void wait_for_kernels(void) {
	struct timespec t;
	if (!current->running) return;
	waited++;
	for (deadline(&t, 30000); current->running && !pthread_cond_timedwait(&turn, &mu, &t);) {}
}

void double_reset(void) {
	pthread_mutex_lock(&mu);
	memset(&conf, 0, sizeof conf);
	conf.devices = 1, conf.version = 12090, conf.memory = 1ull << 30, conf.peer = 1, conf.warp = 32, conf.streammem = 1, conf.sms = 8, conf.vmm = 1, conf.multicast = 1, conf.rdma = 1;
	sticky = 0, waited = 0, null_stream = 0, host_table = 0;
	memset(counts, 0, sizeof counts);
	pthread_mutex_unlock(&mu);
}

R double_set(const char* what, u64 value) {
	struct { const char* name; u64* at; } all[] = {{"devices", &conf.devices}, {"version", &conf.version}, {"memory", &conf.memory}, {"mode", &conf.mode}, {"peer", &conf.peer}, {"warp", &conf.warp}, {"streammem", &conf.streammem}, {"sms", &conf.sms}, {"vmm", &conf.vmm}, {"held", &conf.held}, {"multicast", &conf.multicast}, {"rdma", &conf.rdma}};
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		if (!strcmp(all[i].name, what)) {
			pthread_mutex_lock(&mu);
			*all[i].at = value;
			pthread_cond_broadcast(&turn);
			return leave(OK);
		}
	return NOT_FOUND;
}

// double_fail has the nth call from now of a function return code.
void double_fail(const char* name, u64 nth, R code) {
	pthread_mutex_lock(&mu);
	struct count* c = count(name);
	c->fail_at = nth, c->code = code;
	pthread_mutex_unlock(&mu);
}

u64 double_count(const char* what) {
	pthread_mutex_lock(&mu);
	u64 n = 0;
	if (!strcmp(what, "waited")) n = waited;
	else if (!strcmp(what, "null stream")) n = null_stream;
	else if (!strcmp(what, "used")) n = used;
	else if (!strcmp(what, "running")) for (unsigned i = 0; i < sizeof contexts / sizeof *contexts; i++) n += contexts[i].running;
	else if (!strcmp(what, "handles")) n = handles;
	else if (!strcmp(what, "graphs")) n = graphs;
	else if (!strcmp(what, "streams")) n = streams;
	else if (!strcmp(what, "copies within")) n = within;
	else if (!strcmp(what, "copies between")) n = between;
	else if (!strcmp(what, "stack")) n = contexts[0].stack;
	else if (!strcmp(what, "host table")) n = host_table;
	else if (!strcmp(what, "memories")) for (struct mem* m = memories; m; m = m->next) n++;
	else n = count(what)->calls;
	pthread_mutex_unlock(&mu);
	return n;
}

const char* double_environment(void) { return environment; }

// double_take waits for a kernel at the head of a stream, for ms at most.
R double_take(struct taken* out, u64 ms) {
	struct timespec t;
	deadline(&t, ms);
	pthread_mutex_lock(&mu);
	for (;;) {
		for (struct job* j = jobs; j; j = j->next) {
			if (j->taken) continue;
			j->taken = 1;
			out->id = j->id, out->blocks = j->op->blocks, out->threads = j->op->threads, out->cooperative = j->op->cooperative, out->bytes = j->op->k->args;
			memcpy(out->name, j->op->k->name, sizeof out->name);
			memcpy(out->args, j->op->args, sizeof out->args);
			return leave(OK);
		}
		if (pthread_cond_timedwait(&turn, &mu, &t)) return leave(NOT_READY);
	}
}

// double_done ends a kernel. A code that is not 0 ends the context.
void double_done(u64 id, R code) {
	pthread_mutex_lock(&mu);
	for (struct job* j = jobs; j; j = j->next)
		if (j->id == id) j->done = 1, j->result = code;
	if (code) sticky = code;
	pthread_cond_broadcast(&turn);
	pthread_mutex_unlock(&mu);
}

// double_stick has an error stick that no kernel of the test made.
void double_stick(R code) {
	pthread_mutex_lock(&mu);
	sticky = code;
	pthread_cond_broadcast(&turn);
	pthread_mutex_unlock(&mu);
}

static void run_kernel(struct op* o) {
	if (!strcmp(o->k->name, "DoorbellWarm")) return; // it does nothing, and no test has it
	struct job j = {.id = next_id++, .op = o, .next = jobs};
	jobs = &j;
	o->ctx->running++;
	reach(1);
	pthread_cond_broadcast(&turn);
	while (!j.done) pthread_cond_wait(&turn, &mu);
	for (struct job** p = &jobs; *p; p = &(*p)->next)
		if (*p == &j) { *p = j.next; break; }
	reach(-1);
	o->ctx->running--;
}

// on_device says whether a word is of device memory. One of the host's is reached without it: who waits for that may look at
// device memory as soon as it is there.
static int on_device(u64 at) {
	for (struct mem* m = memories; m; m = m->next)
		if (at >= m->addr && at - m->addr < m->bytes) return of_device(m);
	return 0;
}
static u64 load(u64 at) {
	int near = on_device(at);
	reach(near);
	u64 v = __atomic_load_n((u64*)at, __ATOMIC_ACQUIRE);
	reach(-near);
	return v;
}
static void store(u64 at, u64 v) {
	int near = on_device(at);
	reach(near);
	__atomic_store_n((u64*)at, v, __ATOMIC_RELEASE);
	reach(-near);
}

static void* serve(void* p) {
	struct stream* s = p;
	pthread_mutex_lock(&mu);
	for (;;) {
		while ((!s->head || conf.held) && !s->ending) pthread_cond_wait(&turn, &mu);
		if (!s->head) break;
		struct op* o = s->head;
		if (!sticky) switch (o->kind) {
		case KERNEL: run_kernel(o); break;
		case COPY: case FILL:
			reach(1);
			pthread_mutex_unlock(&mu);
			if (o->kind == COPY) memmove((void*)o->a, (void*)o->b, o->n); else memset((void*)o->a, (int)o->b, o->n);
			pthread_mutex_lock(&mu);
			reach(-1);
			break;
		case WRITE: store(o->a, o->b); break;
		case WAIT:
			while (!sticky && (int64_t)(load(o->a) - o->b) < 0) {
				struct timespec t;
				deadline(&t, 1);
				pthread_cond_timedwait(&turn, &mu, &t);
			}
		}
		s->head = o->next;
		if (!s->head) s->tail = 0;
		s->pending--;
		free(o);
		pthread_cond_broadcast(&turn);
	}
	pthread_mutex_unlock(&mu);
	return 0; // s stays, so that a late use of it is seen
}

static R push(struct stream* s, struct op o) {
	if (!s || s->ending) { null_stream++; return BAD_HANDLE; }
	if (s->recording) {
		struct graph* g = s->recording;
		if (g->n == 256) return INVALID;
		g->ops[g->n++] = o;
		return OK;
	}
	struct op* q = malloc(sizeof *q);
	*q = o;
	if (s->tail) s->tail->next = q; else s->head = q;
	s->tail = q;
	s->pending++;
	pthread_cond_broadcast(&turn);
	return OK;
}

// known is the memory that a range is of, 0 if it was not allocated.
static struct mem* known(u64 addr, u64 n) {
	for (struct mem* m = memories; m; m = m->next)
		if (addr >= m->addr && addr + n <= m->addr + m->bytes && m->host != RESERVED && m->host != MAPPED) return m;
	return 0;
}

R cuInit(unsigned flags) {
	BEGIN(0);
	const char *a = getenv("CUDA_DEVICE_MAX_CONNECTIONS"), *b = getenv("CUDA_MODULE_LOADING");
	snprintf(environment, sizeof environment, "%s %s", a ? a : "-", b ? b : "-");
	return leave(flags ? INVALID : conf.devices ? OK : NO_DEVICE);
}
R cuDriverGetVersion(int* v) { BEGIN(0); *v = (int)conf.version; END; }

static struct { R code; const char *name, *text; } texts[] = {{OK, "CUDA_SUCCESS", "no error"}, {INVALID, "CUDA_ERROR_INVALID_VALUE", "invalid argument"}, {OOM, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}, {NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"}, {BAD_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}, {NO_BINARY, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"}, {BAD_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"}, {NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"}, {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch"}, {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"}, {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}};
R cuGetErrorName(R code, const char** p) {
	for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++) if (texts[i].code == code) { *p = texts[i].name; return OK; }
	*p = 0;
	return INVALID;
}
R cuGetErrorString(R code, const char** p) {
	for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++) if (texts[i].code == code) { *p = texts[i].text; return OK; }
	*p = 0;
	return INVALID;
}

R cuDeviceGetCount(int* n) { BEGIN(0); *n = (int)conf.devices; END; }
R cuDeviceGet(int* d, int i) { BEGIN(0); *d = i; return leave(i < 0 || i >= (int)conf.devices ? BAD_DEVICE : OK); }
R cuDeviceGetName(char* name, int n, int d) { BEGIN(0); snprintf(name, n, "double %d", d); END; }
R cuDeviceTotalMem_v2(u64* n, int d) { BEGIN(0); *n = d < 0 ? 0 : conf.memory; END; }
R cuDeviceGetUuid_v2(u64* uuid, int d) { BEGIN(0); uuid[0] = 0xd0b1e, uuid[1] = (u64)d; END; }
R cuDeviceGetAttribute(int* v, int a, int d) {
	BEGIN(0);
	switch (a) {
	case 10: *v = (int)conf.warp; break;
	case 16: *v = (int)conf.sms; break;
	case 20: *v = (int)conf.mode; break;
	case 33: *v = 0x17 + d; break;
	case 39: *v = 2048; break;
	case 40: *v = 3; break;
	case 75: *v = 9; break;
	case 34: case 50: case 76: case 86: *v = 0; break;
	case 110: *v = (int)conf.rdma; break;
	case 103: *v = (int)conf.vmm; break;
	case 106: *v = 32; break;
	case 132: *v = (int)conf.multicast; break;
	case 122: *v = (int)conf.streammem; break;
	default: *v = 1;
	}
	END;
}
R cuDeviceCanAccessPeer(int* v, int a, int b) { BEGIN(0); *v = conf.peer && a != b; END; }

R cuDevicePrimaryCtxRetain(struct ctx** c, int d) {
	BEGIN(0);
	if (sticky) return leave(sticky);
	if (!contexts[d].refs++) contexts[d] = (struct ctx){.dev = d, .refs = 1, .stack = 1024};
	*c = &contexts[d];
	END;
}
R cuDevicePrimaryCtxRelease_v2(int d) {
	BEGIN(0);
	if (--contexts[d].refs == 0)
		for (struct mem **p = &memories, *m; (m = *p);) {
			if (m->ctx != &contexts[d] || m->host > HOST) { // what is mapped is the process's, and stays
				p = &m->next;
				continue;
			}
			*p = m->next;
			release(m);
		}
	END;
}
R cuCtxSetCurrent(struct ctx* c) { current = c; return OK; } // on each call's way: not counted
R cuCtxEnablePeerAccess(struct ctx* c, unsigned f) {
	BEGIN(1);
	wait_for_kernels();
	if (f || !c->refs) return leave(INVALID);
	if (current->peers & 1u << c->dev) return leave(PEER_TWICE);
	current->peers |= 1u << c->dev;
	END;
}
R cuCtxGetStreamPriorityRange(int* least, int* greatest) { BEGIN(1); *least = 0, *greatest = -5; END; }

R cuCtxGetLimit(u64* n, int limit) { BEGIN(1); *n = current->stack; return leave(limit ? INVALID : OK); }
R cuCtxSetLimit(int limit, u64 n) { BEGIN(1); wait_for_kernels(); current->stack = n; return leave(limit ? INVALID : OK); }

// A link's code is its PTX.
struct link {
	char *log, *text;
};
R cuLinkCreate_v2(unsigned n, int* option, void** value, struct link** out) {
	BEGIN(1);
	wait_for_kernels();
	struct link* l = *out = calloc(1, sizeof *l);
	for (unsigned i = 0; i < n; i++) if (option[i] == 5) l->log = value[i];
	END;
}
R cuLinkAddData_v2(struct link* l, int type, const char* text, size_t bytes, const char* name, unsigned n, int* option, void** value) {
	BEGIN(1);
	if (type != 1 || l->text || n || !name || text[bytes - 1]) return leave(INVALID);
	const char *p = strstr(text, ".target sm_");
	if (p && atoi(p + 11) > 90) return leave(NO_BINARY);
	p = strstr(text, "error:");
	if (p) {
		if (l->log) snprintf(l->log, 512, "ptxas: %.200s", p);
		return leave(BAD_PTX);
	}
	l->text = strdup(text);
	p = strstr(text, " doorbell_host_memory = ");
	if (p) host_table = strtoull(p + 24, 0, 10);
	END;
}
R cuLinkComplete(struct link* l, void** code, size_t* bytes) {
	BEGIN(1);
	if (!l->text) return leave(INVALID);
	*code = l->text, *bytes = strlen(l->text) + 1;
	END;
}
R cuLinkDestroy(struct link* l) { BEGIN(1); free(l->text); free(l); END; }

// cuModuleLoadDataEx reads the entries of the PTX and how many bytes of arguments each takes.
R cuModuleLoadDataEx(struct module** out, const char* text, unsigned n, int* option, void** value) {
	BEGIN(1);
	wait_for_kernels();
	if (n) return leave(INVALID);
	const char* p;
	struct module* m = calloc(1, sizeof *m);
	for (p = text; (p = strstr(p, ".entry ")) && m->entries < 64;) {
		struct entry* e = &m->entry[m->entries++];
		e->m = m;
		sscanf(p, ".entry %127[A-Za-z0-9_$]", e->name);
		const char *end = strchr(p, ')'), *b = strstr(p, ".b8 ");
		p += 7;
		if (end && b && b < end && (b = strchr(b, '['))) e->args = strtoull(b + 1, 0, 10);
	}
	*out = m;
	END;
}
R cuModuleUnload(struct module* m) { BEGIN(1); wait_for_kernels(); free(m); END; }
R cuModuleGetFunction(struct entry** f, struct module* m, const char* name) {
	BEGIN(1);
	for (int i = 0; i < m->entries; i++) if (!strcmp(m->entry[i].name, name)) { *f = &m->entry[i]; return leave(OK); }
	return leave(NOT_FOUND);
}
// local is what a kernel takes of local memory.
static int local(struct entry* f) { return strstr(f->name, "Deep") ? 5000 : 0; }
R cuFuncGetAttribute(int* v, int a, struct entry* f) {
	BEGIN(1);
	*v = a == 0 ? (strstr(f->name, "Fat") ? 256 : 1024) : a == 3 ? local(f) : a == 4 ? 32 : 0;
	END;
}
R cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, struct entry* f, int threads, u64 shared) {
	BEGIN(1);
	int most = (strstr(f->name, "Fat") ? 256 : 2048) / threads;
	*n = shared ? 0 : most < 32 ? most : 32;
	END;
}

static R take(u64* p, u64 n, int host) {
	if (!n) return INVALID;
	if (!host && used + n > conf.memory) return OOM;
	struct mem* m = malloc(sizeof *m);
	*m = (struct mem){.bytes = n, .host = host, .ctx = current, .next = memories};
	m->addr = *p = (u64)mmap(0, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (m->addr == (u64)MAP_FAILED) abort();
	memset((void*)m->addr, 0xaa, n);
	protect(m);
	if (!host) used += n;
	memories = m;
	return OK;
}
static R give(u64 p, int host) {
	wait_for_kernels();
	for (struct mem **q = &memories, *m; (m = *q); q = &m->next)
		if (m->addr == p && m->host == host && m->ctx == current) {
			*q = m->next;
			release(m);
			return OK;
		}
	return INVALID;
}
R cuMemAlloc_v2(u64* p, u64 n) { BEGIN(1); return leave(take(p, n, 0)); }
R cuMemFree_v2(u64 p) { BEGIN(1); return leave(give(p, 0)); }
R cuMemHostAlloc(u64* p, u64 n, unsigned flags) { BEGIN(1); if (n > 8 << 20) wait_for_kernels(); return leave(flags == 3 ? take(p, n, 1) : INVALID); }
R cuMemFreeHost(u64 p) { BEGIN(1); return leave(give(p, 1)); }

// Memory that processes share. Properties and access are as cuda.h lays them out.
static R fits(const unsigned* prop) { return prop[0] == 1 && prop[1] == 1 && prop[2] == 1 && prop[3] < conf.devices && !prop[4] && !prop[5] && prop[6] == (conf.rdma ? 1u << 8 : 0) && !prop[7] ? OK : INVALID; }
static void drop(struct phys* p) {
	if (--p->refs) return;
	if (p->own) used -= p->bytes;
	close(p->fd), free(p);
}
static struct mem* at(u64 addr, u64 n) {
	for (struct mem* m = memories; m; m = m->next) if (m->addr == addr && m->bytes == n) return m;
	return 0;
}
R cuMemGetAllocationGranularity(u64* n, const unsigned* prop, int which) { BEGIN(1); *n = GRAIN; return leave(which ? INVALID : fits(prop)); }
R cuMemCreate(struct phys** out, u64 n, const unsigned* prop, u64 flags) {
	BEGIN(1);
	if (!n || n % GRAIN || flags || fits(prop)) return leave(INVALID);
	if (used + n > conf.memory) return leave(OOM);
	struct phys* p = *out = malloc(sizeof *p);
	*p = (struct phys){.fd = memfd_create("gpu", MFD_CLOEXEC), .refs = 1, .own = 1, .dev = (int)prop[3], .bytes = n};
	if (p->fd < 0 || ftruncate(p->fd, (off_t)n)) return leave(INVALID);
	used += n, handles++;
	END;
}
R cuMemRelease(struct phys* p) { BEGIN(1); handles--; drop(p); END; }
R cuMemExportToShareableHandle(int* fd, struct phys* p, int type, u64 flags) {
	BEGIN(1);
	if (type != 1 || flags) return leave(INVALID);
	*fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
	END;
}
R cuMemImportFromShareableHandle(struct phys** out, u64 fd, int type) {
	BEGIN(1);
	struct stat s;
	if (type != 1 || fstat((int)fd, &s) || !s.st_size || s.st_size % GRAIN) return leave(INVALID);
	struct phys* p = *out = malloc(sizeof *p);
	*p = (struct phys){.fd = fcntl((int)fd, F_DUPFD_CLOEXEC, 0), .refs = 1, .dev = -1, .bytes = (u64)s.st_size};
	for (struct mem* m = memories; m; m = m->next) { // of this process, where it is known
		struct stat o;
		if (m->phys && !fstat(m->phys->fd, &o) && o.st_ino == s.st_ino) p->dev = m->phys->dev;
	}
	handles++;
	END;
}
R cuMemAddressReserve(u64* at, u64 n, u64 align, u64 addr, u64 flags) {
	BEGIN(1);
	if (!n || n % GRAIN || align || addr || flags) return leave(INVALID);
	struct mem* m = malloc(sizeof *m);
	*m = (struct mem){.bytes = n, .host = RESERVED, .ctx = current, .next = memories};
	m->addr = *at = (u64)mmap(0, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memories = m;
	END;
}
R cuMemAddressFree(u64 addr, u64 n) {
	BEGIN(1);
	for (struct mem **q = &memories, *m; (m = *q); q = &m->next)
		if (m->addr == addr && m->bytes == n && m->host == RESERVED) {
			*q = m->next;
			munmap((void*)addr, n), free(m);
			return leave(OK);
		}
	return leave(INVALID);
}
R cuMemMap(u64 addr, u64 n, u64 off, struct phys* p, u64 flags) {
	BEGIN(1);
	struct mem* m = at(addr, n);
	if (!m || m->host != RESERVED || off || flags || n > p->bytes) return leave(INVALID);
	m->host = MAPPED, m->phys = p, p->refs++;
	END;
}
R cuMemSetAccess(u64 addr, u64 n, const unsigned* access, u64 count) {
	BEGIN(1);
	struct mem* m = at(addr, n);
	if (!m || m->host != MAPPED || count != 1 || access[0] != 1 || access[1] >= conf.devices || access[2] != 3) return leave(INVALID);
	if (mmap((void*)addr, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, m->phys->fd, 0) == MAP_FAILED) return leave(INVALID);
	m->host = SHARED;
	protect(m);
	END;
}
R cuMemUnmap(u64 addr, u64 n) {
	BEGIN(1);
	struct mem* m = at(addr, n);
	if (!m || m->host < MAPPED) return leave(INVALID);
	mmap((void*)addr, n, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	m->host = RESERVED, drop(m->phys);
	END;
}
R cuMemRetainAllocationHandle(struct phys** out, u64 addr) {
	BEGIN(1);
	for (struct mem* m = memories; m; m = m->next)
		if (m->addr == addr && m->host == SHARED) {
			*out = m->phys, m->phys->refs++, handles++;
			return leave(OK);
		}
	return leave(INVALID);
}

// joined adds to how many GPUs have joined a multicast object, and says whether all have.
static int joined(struct phys* p, int n) {
	u64* at = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, p->fd, 0);
	if (at == MAP_FAILED) return 0;
	int all = (at[1] += (u64)n) == at[0] && at[0];
	munmap(at, 4096);
	return all;
}
static R multicast_fits(const u64* prop) { return prop[0] < 2 || prop[2] != 1 || prop[3] ? INVALID : OK; }
R cuMulticastGetGranularity(u64* n, const u64* prop, int which) { BEGIN(1); *n = 2 * GRAIN; return leave(which ? INVALID : multicast_fits(prop)); }
R cuMulticastCreate(struct phys** out, const u64* prop) {
	BEGIN(1);
	if (multicast_fits(prop) || prop[0] > conf.devices || prop[1] % (2 * GRAIN)) return leave(INVALID);
	struct phys* p = *out = malloc(sizeof *p);
	*p = (struct phys){.fd = memfd_create("multicast", MFD_CLOEXEC), .refs = 1, .bytes = prop[1]};
	if (p->fd < 0 || ftruncate(p->fd, (off_t)p->bytes) || pwrite(p->fd, prop, 8, 0) != 8) return leave(INVALID);
	handles++;
	END;
}
R cuMulticastAddDevice(struct phys* p, int d) { BEGIN(1); joined(p, 1); return leave(d < (int)conf.devices ? OK : BAD_DEVICE); }
R cuMulticastBindMem(struct phys* p, u64 off, struct phys* m, u64 moff, u64 n, u64 flags) {
	BEGIN(1);
	if (!joined(p, 0) || p->bound || off || moff || flags || n % (2 * GRAIN) || n > m->bytes || n > p->bytes) return leave(INVALID);
	p->bound = m, m->refs++;
	END;
}
R cuMulticastUnbind(struct phys* p, int d, u64 off, u64 n) {
	BEGIN(1);
	if (!p->bound || off || n > p->bytes || d >= (int)conf.devices) return leave(INVALID);
	drop(p->bound), p->bound = 0;
	END;
}
R cuMemHostRegister_v2(u64 addr, u64 n, unsigned flags) {
	BEGIN(1);
	if (n > 8 << 20) wait_for_kernels();
	int io = flags == 7; // registers of another device, of any size
	if (!n || (!io && (addr % 4096 || n % 4096 || flags != 3)) || at(addr, n)) return leave(INVALID);
	struct mem* m = malloc(sizeof *m);
	*m = (struct mem){.addr = addr, .bytes = n, .host = REGISTERED, .ctx = current, .next = memories};
	memories = m;
	END;
}
R cuMemHostUnregister(u64 addr) {
	BEGIN(1);
	wait_for_kernels();
	for (struct mem **q = &memories, *m; (m = *q); q = &m->next)
		if (m->addr == addr && m->host == REGISTERED) { *q = m->next; free(m); return leave(OK); }
	return leave(INVALID);
}
R cuMemHostGetDevicePointer_v2(u64* out, u64 addr, unsigned flags) {
	BEGIN(1);
	for (struct mem* m = memories; m; m = m->next)
		if (!flags && m->host == REGISTERED && addr - m->addr < m->bytes) { *out = addr; return leave(OK); }
	return leave(INVALID);
}
// cuMemGetHandleForAddressRange gives a file as long as the range, whose first word says where that begins.
R cuMemGetHandleForAddressRange(int* fd, u64 addr, u64 n, int type, u64 flags) {
	BEGIN(1);
	if (!n || addr % 4096 || n % 4096 || type != 1 || flags) return leave(INVALID);
	for (struct mem* m = memories; m; m = m->next)
		if (of_device(m) && addr >= m->addr && addr + n <= m->addr + m->bytes) {
			*fd = memfd_create("dmabuf", MFD_CLOEXEC);
			return leave(*fd < 0 || ftruncate(*fd, (off_t)n) || pwrite(*fd, &addr, 8, 0) != 8 ? INVALID : OK);
		}
	return leave(INVALID);
}
R cuMemGetInfo_v2(u64* free, u64* total) { BEGIN(1); *free = conf.memory - used, *total = conf.memory; END; }

R cuStreamCreateWithPriority(struct stream** out, unsigned flags, int priority) {
	BEGIN(1);
	if (flags != 1 || priority > 0 || priority < -5) return leave(INVALID);
	struct stream* s = *out = calloc(1, sizeof *s);
	streams++;
	pthread_create(&s->thread, 0, serve, s);
	pthread_detach(s->thread);
	END;
}
R cuStreamDestroy_v2(struct stream* s) {
	BEGIN(1);
	if (s->pending) waited++;
	s->ending = 1, streams--;
	pthread_cond_broadcast(&turn);
	END;
}
R cuStreamQuery(struct stream* s) {
	BEGIN(1);
	if (!s || s->ending) { null_stream++; return leave(BAD_HANDLE); }
	if (s->recording) {
		s->recording->broken = 1;
		return leave(CAPTURE);
	}
	return leave(s->pending ? NOT_READY : OK);
}
R cuStreamWriteValue64_v2(struct stream* s, u64 at, u64 v, unsigned f) { BEGIN(1); return leave(f || at % 8 || !known(at, 8) ? INVALID : push(s, (struct op){.kind = WRITE, .a = at, .b = v})); }
R cuStreamBatchMemOp_v2(struct stream* s, unsigned n, u64 (*p)[6], unsigned f) {
	BEGIN(1);
	for (unsigned i = 0; i < n; i++)
		if (f || (unsigned)p[i][0] != 5 || p[i][1] % 8 || !known(p[i][1], 8) || (unsigned)p[i][3]) return leave(INVALID);
	R r = OK;
	for (unsigned i = 0; i < n && r == OK; i++) r = push(s, (struct op){.kind = WRITE, .a = p[i][1], .b = p[i][2]});
	return leave(r);
}
R cuStreamWaitValue64_v2(struct stream* s, u64 at, u64 v, unsigned f) { BEGIN(1); return leave(f || at % 8 || !known(at, 8) ? INVALID : push(s, (struct op){.kind = WAIT, .a = at, .b = v})); }
R cuMemcpyAsync(u64 dst, u64 src, u64 n, struct stream* s) {
	BEGIN(1);
	struct mem *to = known(dst, n), *from = known(src, n);
	if (!n || !to || !from) return leave(INVALID);
	if (of_device(to) && of_device(from)) *(gpu_of(to) == gpu_of(from) ? &within : &between) += 1;
	return leave(push(s, (struct op){.kind = COPY, .a = dst, .b = src, .n = n}));
}
// cuMemcpyBatchAsync does the copies the other way round: a GPU may do them in any order. It refuses those that would not be the same.
R cuMemcpyBatchAsync(u64* dst, u64* src, size_t* bytes, size_t n, const u64* attributes, const size_t* first, size_t kinds, size_t* bad, struct stream* s) {
	BEGIN(1);
	if (!n || kinds != 1 || first[0] || attributes[0] != 1 || attributes[1] || attributes[2] || (s && s->recording)) return leave(INVALID);
	for (size_t i = 0; i < n; i++) {
		*bad = i;
		struct mem *to = known(dst[i], bytes[i]), *from = known(src[i], bytes[i]);
		if (!bytes[i] || !to || !from || (of_device(to) && of_device(from))) return leave(INVALID);
		for (size_t k = 0; k < n; k++)
			if ((k != i && dst[i] < dst[k] + bytes[k] && dst[k] < dst[i] + bytes[i]) || (dst[i] < src[k] + bytes[k] && src[k] < dst[i] + bytes[i])) return leave(INVALID);
	}
	R r = OK;
	while (n-- && r == OK) r = push(s, (struct op){.kind = COPY, .a = dst[n], .b = src[n], .n = bytes[n]});
	return leave(r);
}
R cuMemsetD8Async(u64 dst, unsigned char v, u64 n, struct stream* s) { BEGIN(1); return leave(!n || !known(dst, n) ? INVALID : push(s, (struct op){.kind = FILL, .a = dst, .b = v, .n = n})); }

static R launch(struct entry* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, struct stream* s, void** params, int cooperative) {
	if (!f || !gx || gy != 1 || gz != 1 || !bx || bx > 1024 || by != 1 || bz != 1 || shared || f->args > 4096) return INVALID;
	if (cooperative && gx > conf.sms * (2048 / bx < 32 ? 2048 / bx : 32)) return TOO_LARGE;
	if ((u64)local(f) > current->stack) { // the GPU waits for what runs before it has more
		waited += current->running > 0;
		current->stack = (u64)local(f);
	}
	struct op o = {.kind = KERNEL, .ctx = current, .k = f, .blocks = gx, .threads = bx, .cooperative = cooperative};
	if (f->args) memcpy(o.args, params[0], f->args);
	return push(s, o);
}
R cuLaunchKernel(struct entry* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, struct stream* s, void** params, void** extra) {
	BEGIN(1);
	return leave(extra ? INVALID : launch(f, gx, gy, gz, bx, by, bz, shared, s, params, 0));
}
R cuLaunchCooperativeKernel(struct entry* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, struct stream* s, void** params) {
	BEGIN(1);
	return leave(launch(f, gx, gy, gz, bx, by, bz, shared, s, params, 1));
}

// A graph that is recorded is the graph that is launched: the items are queued again.
R cuStreamBeginCapture_v2(struct stream* s, int mode) {
	BEGIN(1);
	if (s->recording || mode != 2) return leave(INVALID);
	s->recording = calloc(1, sizeof *s->recording), graphs++;
	END;
}
R cuStreamEndCapture(struct stream* s, struct graph** out) {
	BEGIN(1);
	struct graph* g = s->recording;
	if (!g) return leave(INVALID);
	s->recording = 0;
	if (g->broken) {
		free(g), graphs--;
		return leave(CAPTURE + 1);
	}
	*out = g;
	END;
}
R cuGraphInstantiateWithFlags(struct graph** exec, struct graph* g, u64 flags) {
	BEGIN(1);
	wait_for_kernels();
	if (flags) return leave(INVALID);
	*exec = malloc(sizeof *g), **exec = *g, graphs++;
	END;
}
R cuGraphLaunch(struct graph* exec, struct stream* s) {
	BEGIN(1);
	R r = OK;
	for (int i = 0; i < exec->n && r == OK; i++) r = push(s, exec->ops[i]);
	return leave(r);
}
R cuGraphDestroy(struct graph* g) { BEGIN(1); free(g), graphs--; END; }
R cuGraphExecDestroy(struct graph* g) { BEGIN(1); wait_for_kernels(); free(g), graphs--; END; }
