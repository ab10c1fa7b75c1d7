// SPDX-License-Identifier: Apache-2.0
//
// A test double of libibverbs and libmlx5: it writes down each call with what it was given, and returns what a test can tell
// from anything else. Its structures are written as rdma-core's headers have them, so that the compiler lays them out.

#define _GNU_SOURCE
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

static char said[1 << 16]; // a line for each call
static char failing[64];   // the function that fails, with EDOM

static int fails(const char* name, const char* format, ...) {
	va_list args;
	va_start(args, format);
	size_t n = strlen(said);
	n += snprintf(said + n, sizeof said - n, "%s ", name);
	n += vsnprintf(said + n, sizeof said - n, format, args);
	snprintf(said + n, sizeof said - n, "\n");
	va_end(args);
	errno = strcmp(name, failing) ? 0 : EDOM;
	return errno;
}
#define FAILS(...) fails(__func__, __VA_ARGS__)

const char* double_said(void) { return said; }
void double_fail(const char* name) { snprintf(failing, sizeof failing, "%s", name), said[0] = 0; }

union gid { u8 raw[16]; u64 words[2]; };
struct device { int number; const char* name; };
struct context { int number; };
struct pd { int number; };
struct mr { struct context* context; struct pd* pd; void* addr; size_t length; u32 handle, lkey, rkey; };
struct port_attr {
	u32 state, max_mtu, active_mtu;
	int gid_tbl_len;
	u32 port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
	u16 pkey_tbl_len, lid, sm_lid;
	u8 lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags;
};
struct gid_entry { union gid gid; u32 gid_index, port_num, gid_type, ndev_ifindex; };
struct ah_attr {
	struct { union gid dgid; u32 flow_label; u8 sgid_index, hop_limit, traffic_class; } grh;
	u16 dlid;
	u8 sl, src_path_bits, static_rate, is_global, port_num;
};
struct av { u64 key; u32 dqp_dct; u8 stat_rate_sl, fl_mlid; u16 rlid; u8 reserved0[4], rmac[6], tclass, hop_limit; u32 grh_gid_fl; u8 rgid[16]; };
struct ah { int number; };
struct context_attr { u32 flags; u64 comp_mask; void* fds; };
struct umem_in { void* addr; size_t size; u32 access; u64 pgsz_bitmap, comp_mask; int dmabuf_fd; };
struct umem { u32 umem_id; };
struct uar { void *reg_addr, *base_addr; u32 page_id; off_t mmap_off; u64 comp_mask; };
struct dv_pd { u32 pdn; u64 comp_mask; };
struct dv_ah { struct av* av; u64 comp_mask; };
struct pair { void *in, *out; };
struct dv_obj { struct pair qp, cq, srq, rwq, dm, ah, pd, devx; };
struct obj { int number; };

static struct device devices[] = {{1, "mlx5_1"}, {2, "other_0"}, {3, "mlx5_0"}};
static struct device* list[] = {&devices[0], &devices[1], &devices[2], 0};
static struct context context = {4};
static struct pd pd = {5};
static struct mr mr = {&context, &pd, 0, 0, 1, 0x12345678, 0x9abcdef0};
static struct ah ah = {6};
static struct av av = {.rmac = {1, 2, 3, 4, 5, 6}};
static struct umem umem = {0x31323334};
static u64 page[512];
static struct uar uar = {&page[256], page, 0x414243};
static struct obj obj = {7};

struct device** ibv_get_device_list(int* n) { return FAILS("") ? 0 : (*n = 3, list); }
void ibv_free_device_list(struct device** l) { FAILS("%d", l == list); }
const char* ibv_get_device_name(struct device* d) { return d->name; }
_Bool mlx5dv_is_supported(struct device* d) { return d->number != 2; }
struct context* mlx5dv_open_device(struct device* d, struct context_attr* a) {
	return FAILS("%s %u %lu %d", d->name, a->flags, a->comp_mask, !a->fds) ? 0 : &context;
}
int ibv_close_device(struct context* c) { return FAILS("%d", c->number) ? -1 : 0; }
int ibv_query_port(struct context* c, u8 port, struct port_attr* p) {
	*p = (struct port_attr){.state = 4, .max_mtu = 5, .active_mtu = 3, .gid_tbl_len = 255, .pkey_tbl_len = 1, .lid = 0x5152, .sm_lid = 9, .phys_state = 5, .link_layer = port, .flags = (u8)(port + 1)};
	return FAILS("%d %d", c->number, port);
}
int _ibv_query_gid_ex(struct context* c, u32 port, u32 index, struct gid_entry* e, u32 flags, size_t size) {
	if (index == 1) return ENODATA;
	*e = (struct gid_entry){.gid_index = index, .port_num = port, .gid_type = 2, .ndev_ifindex = 8};
	for (int i = 0; i < 16; i++) e->gid.raw[i] = (u8)(0x60 + i);
	return FAILS("%d %u %u %u %zu", c->number, port, index, flags, size - sizeof *e);
}
struct pd* ibv_alloc_pd(struct context* c) { return FAILS("%d", c->number) ? 0 : &pd; }
int ibv_dealloc_pd(struct pd* p) { return FAILS("%d", p->number); }
struct mr* ibv_reg_mr_iova2(struct pd* p, void* addr, size_t n, u64 iova, unsigned access) {
	return FAILS("%d %p %zu %lu %#x", p->number, addr, n, iova, access) ? 0 : &mr;
}
struct mr* ibv_reg_dmabuf_mr(struct pd* p, u64 offset, size_t n, u64 iova, int fd, int access) {
	return FAILS("%d %lu %zu %lu %d %#x", p->number, offset, n, iova, fd, access) ? 0 : &mr;
}
int ibv_dereg_mr(struct mr* m) { return FAILS("%d", m == &mr); }
struct ah* ibv_create_ah(struct pd* p, struct ah_attr* a) {
	return FAILS("%d %02x%02x %u %u %u %u %u %u %u %u", p->number, a->grh.dgid.raw[0], a->grh.dgid.raw[15], a->grh.flow_label, a->grh.sgid_index, a->grh.hop_limit, a->grh.traffic_class,
		a->dlid, a->sl, a->is_global, a->port_num) ? 0 : &ah;
}
int ibv_destroy_ah(struct ah* a) { return FAILS("%d", a->number); }
int mlx5dv_devx_query_eqn(struct context* c, u32 vector, u32* eqn) { return *eqn = 0x71, FAILS("%d %u", c->number, vector); }
int mlx5dv_init_obj(struct dv_obj* o, u64 kinds) {
	if (kinds == 1 << 6 && o->pd.in == &pd) *(struct dv_pd*)o->pd.out = (struct dv_pd){0x616263, 0};
	if (kinds == 1 << 5 && o->ah.in == &ah) *(struct dv_ah*)o->ah.out = (struct dv_ah){&av, 0};
	return FAILS("%lu", kinds);
}
struct uar* mlx5dv_devx_alloc_uar(struct context* c, u32 flags) { return FAILS("%d %u", c->number, flags) ? 0 : &uar; }
void mlx5dv_devx_free_uar(struct uar* u) { FAILS("%d", u == &uar); }
struct umem* mlx5dv_devx_umem_reg_ex(struct context* c, struct umem_in* u) {
	return FAILS("%d %p %zu %#x %lu %lu %d", c->number, u->addr, u->size, u->access, u->pgsz_bitmap, u->comp_mask, u->dmabuf_fd) ? 0 : &umem;
}
int mlx5dv_devx_umem_dereg(struct umem* u) { return FAILS("%d", u == &umem); }

// Commands are answered with as many bytes as there is room for, which go on from their own first byte.
static int answer(const u8* in, size_t n, u8* out, size_t room, const char* name, int number) {
	for (size_t i = 0; i < room; i++) out[i] = (u8)(in[0] + i);
	return fails(name, "%d %zu %02x%02x %zu", number, n, in[0], in[n - 1], room);
}
int mlx5dv_devx_general_cmd(struct context* c, const void* in, size_t n, void* out, size_t room) { return answer(in, n, out, room, __func__, c->number); }
struct obj* mlx5dv_devx_obj_create(struct context* c, const void* in, size_t n, void* out, size_t room) {
	return answer(in, n, out, room, __func__, c->number) ? 0 : &obj;
}
int mlx5dv_devx_obj_modify(struct obj* o, const void* in, size_t n, void* out, size_t room) { return answer(in, n, out, room, __func__, o->number); }
int mlx5dv_devx_obj_destroy(struct obj* o) { return FAILS("%d", o->number); }
