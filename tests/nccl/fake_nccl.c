/* A library with NCCL's interface for ranks that are threads of one process, each with a software
 * device of its own. Work is a host function on the stream: it waits for the other ranks there, and
 * the last one does the work of all. As NCCL it compares nothing: ranks that differ wait for good,
 * until their communicator is aborted. */

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 8
#define MEETINGS 256
#define OPERATIONS 64

enum { ALL_REDUCE, REDUCE, BROADCAST, REDUCE_SCATTER, ALL_GATHER, SEND, RECV };

typedef struct { char internal[128]; } unique_id;

typedef struct {
    int kind, dtype, op, root;
    size_t count;
    const char *source;
    char *target;
    long number;
} operation;

typedef struct { long number; int came, done; operation ops[MOST]; } meeting;
typedef struct message { const operation *op; int taken; struct message *next; } message;

typedef struct world {
    char id[128];
    int size, joined, is_rooted;
    meeting meetings[MEETINGS];
    message *mail[MOST][MOST];
    int colors[MOST], keys[MOST], split_came, split_left;
    struct world *next;
} world;

typedef struct { world *of; int rank, size, aborted, failure; long number; } comm;
typedef struct { comm *c; int count; operation ops[OPERATIONS]; } launch;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static world *worlds;
static int serial, calls;
static __thread int depth, queued;
static __thread struct { comm *c; void *stream; operation op; } queue[OPERATIONS];
static int next_failure;

#define API __attribute__((visibility("default")))

static size_t size_of(int dtype) {
    static const size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2};
    return sizes[dtype];
}

static float from_half(uint16_t h) {
    uint32_t sign = (uint32_t)(h >> 15) << 31, exponent = h >> 10 & 31, part = h & 1023, bits;
    float f;
    if (exponent == 0) {
        f = (float)part / 16777216.0f;
        return sign ? -f : f;
    }
    bits = sign | (exponent == 31 ? 0x7F800000u : (exponent + 112) << 23) | part << 13;
    memcpy(&f, &bits, 4);
    return f;
}

static uint16_t to_half(float f) { /* finite numbers, to nearest, ties to even */
    uint16_t best = 0;
    float away = 1e30f;
    uint16_t sign = f < 0 ? 0x8000 : 0;
    float wanted = f < 0 ? -f : f;
    uint32_t low = 0, high = 0x7C00;
    while (low + 1 < high) {
        uint32_t middle = (low + high) / 2;
        if (from_half((uint16_t)middle) <= wanted) low = middle; else high = middle;
    }
    for (uint32_t each = low; each <= low + 1; each++) {
        float distance = from_half((uint16_t)each) - wanted;
        distance = distance < 0 ? -distance : distance;
        if (distance < away || (distance == away && !(each & 1))) { away = distance; best = (uint16_t)each; }
    }
    return sign | best;
}

static double real(int dtype, const char *at) {
    uint16_t bits;
    uint32_t wide;
    float f;
    double d;
    if (dtype == 8) { memcpy(&d, at, 8); return d; }
    if (dtype == 7) { memcpy(&f, at, 4); return f; }
    memcpy(&bits, at, 2);
    if (dtype == 6) return from_half(bits);
    wide = (uint32_t)bits << 16;
    memcpy(&f, &wide, 4);
    return f;
}

static void put_real(int dtype, char *at, double d) {
    float f = (float)d;
    uint32_t wide;
    uint16_t bits;
    if (dtype == 8) { memcpy(at, &d, 8); return; }
    if (dtype == 7) { memcpy(at, &f, 4); return; }
    memcpy(&wide, &f, 4);
    bits = dtype == 6 ? to_half(f) : (uint16_t)((wide + 0x7FFF + (wide >> 16 & 1)) >> 16);
    memcpy(at, &bits, 2);
}

static int64_t whole(int dtype, const char *at) {
    int64_t v;
    int32_t w;
    if (dtype >= 4) { memcpy(&v, at, 8); return v; }
    if (dtype >= 2) { memcpy(&w, at, 4); return dtype == 3 ? (int64_t)(uint32_t)w : w; }
    return dtype == 0 ? *(const signed char *)at : *(const unsigned char *)at;
}

/* Add b to a, of one element, rounded as its type is. */
static void combine(int dtype, int op, char *a, const char *b) {
    if (dtype < 6) {
        int64_t x = whole(dtype, a), y = whole(dtype, b);
        uint64_t sum = op == 1 ? (uint64_t)x * (uint64_t)y : (uint64_t)x + (uint64_t)y;
        int64_t r = op == 2 ? (x > y ? x : y) : op == 3 ? (x < y ? x : y) : (int64_t)sum;
        memcpy(a, &r, size_of(dtype));
        return;
    }
    double x = real(dtype, a), y = real(dtype, b);
    put_real(dtype, a, op == 1 ? x * y : op == 2 ? (x > y ? x : y) : op == 3 ? (x < y ? x : y) : x + y);
}

static char *reduced(meeting *m, int size, size_t count) {
    operation *first = &m->ops[0];
    size_t width = size_of(first->dtype);
    char *all = malloc(count * width + 1);
    memcpy(all, first->source, count * width);
    for (int rank = 1; rank < size; rank++)
        for (size_t i = 0; i < count; i++)
            combine(first->dtype, first->op, all + i * width, m->ops[rank].source + i * width);
    if (first->op == 4)
        for (size_t i = 0; i < count; i++)
            put_real(first->dtype, all + i * width, real(first->dtype, all + i * width) / size);
    return all;
}

static void perform(meeting *m, int size) {
    operation *o = &m->ops[0];
    size_t bytes = o->count * size_of(o->dtype);
    if (o->kind == BROADCAST) {
        char *copy = malloc(bytes + 1);
        memcpy(copy, m->ops[o->root].source, bytes);
        for (int rank = 0; rank < size; rank++) memcpy(m->ops[rank].target, copy, bytes);
        free(copy);
    } else if (o->kind == ALL_GATHER) {
        char *copy = malloc(bytes * (size_t)size + 1);
        for (int rank = 0; rank < size; rank++) memcpy(copy + (size_t)rank * bytes, m->ops[rank].source, bytes);
        for (int rank = 0; rank < size; rank++) memcpy(m->ops[rank].target, copy, bytes * (size_t)size);
        free(copy);
    } else {
        char *all = reduced(m, size, o->kind == REDUCE_SCATTER ? o->count * (size_t)size : o->count);
        for (int rank = 0; rank < size; rank++) {
            size_t begin = o->kind == REDUCE_SCATTER ? (size_t)rank * bytes : 0;
            if (o->kind != REDUCE || rank == o->root) memcpy(m->ops[rank].target, all + begin, bytes);
        }
        free(all);
    }
}

static void collective(comm *c, operation *o) {
    world *w = c->of;
    meeting *m = &w->meetings[o->number % MEETINGS];
    if (m->number != o->number) { memset(m, 0, sizeof *m); m->number = o->number; }
    operation *other = NULL;
    for (int rank = 0; rank < c->size; rank++)
        if (m->ops[rank].number == o->number) other = &m->ops[rank];
    int fits = !other || (other->kind == o->kind && other->count == o->count && other->dtype == o->dtype);
    if (fits) { m->ops[c->rank] = *o; m->came++; }
    if (fits && m->came == c->size) { perform(m, c->size); m->done = 1; pthread_cond_broadcast(&changed); }
    while (!(fits && m->number == o->number && m->done) && !c->aborted) pthread_cond_wait(&changed, &lock);
}

static void run(void *data) {
    launch *l = data;
    comm *c = l->c;
    world *w = c->of;
    message *sent = calloc(OPERATIONS, sizeof *sent);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < l->count; i++) {
        if (l->ops[i].kind != SEND) continue;
        message **end = &w->mail[c->rank][l->ops[i].root];
        while (*end) end = &(*end)->next;
        sent[i].op = &l->ops[i];
        *end = &sent[i];
    }
    pthread_cond_broadcast(&changed);
    for (int i = 0; i < l->count; i++)
        if (l->ops[i].kind < SEND) collective(c, &l->ops[i]);
    for (int i = 0; i < l->count; i++) {
        operation *o = &l->ops[i];
        if (o->kind != RECV) continue;
        message **head = &w->mail[o->root][c->rank];
        while (!*head && !c->aborted) pthread_cond_wait(&changed, &lock);
        if (c->aborted) break;
        message *first = *head;
        *head = first->next;
        memcpy(o->target, first->op->source, o->count * size_of(o->dtype));
        first->taken = 1;
        pthread_cond_broadcast(&changed);
    }
    for (int i = 0; i < l->count; i++)
        while (l->ops[i].kind == SEND && !sent[i].taken && !c->aborted) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    /* What an aborted rank has sent may still be in the mail: neither is freed. */
    if (!c->aborted) { free(sent); free(l); }
}

static int launch_on(void *stream, launch *l) {
    static int (*host)(void *, void (*)(void *), void *);
    if (!host) {
        void *found = dlsym(RTLD_DEFAULT, FUNCTION);
        void *library = found ? NULL : dlopen(DRIVER, RTLD_NOW | RTLD_GLOBAL);
        if (!found && library) found = dlsym(library, FUNCTION);
        if (!found) return 2;
        *(void **)&host = found;
    }
    return host(stream, run, l) ? 1 : 0;
}

API int ncclGroupStart(void) { depth++; return 0; }

API int ncclGroupEnd(void) {
    if (--depth) return 0;
    int result = 0;
    for (int i = 0; i < queued; i++) {
        comm *c = queue[i].c;
        if (!c) continue;
        launch *l = calloc(1, sizeof *l);
        l->c = c;
        void *stream = queue[i].stream;
        for (int j = i; j < queued; j++)
            if (queue[j].c == c && queue[j].stream == stream) {
                l->ops[l->count] = queue[j].op;
                if (queue[j].op.kind < SEND) l->ops[l->count].number = ++c->number;
                l->count++;
                queue[j].c = NULL;
            }
        int code = launch_on(stream, l);
        result = result ? result : code;
    }
    queued = 0;
    return result;
}

static int put(comm *c, void *stream, operation o) {
    __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    int code = __atomic_exchange_n(&next_failure, 0, __ATOMIC_SEQ_CST);
    if (code) return code;
    ncclGroupStart();
    queue[queued].c = c;
    queue[queued].stream = stream;
    queue[queued++].op = o;
    return ncclGroupEnd();
}

API int ncclAllReduce(const void *s, void *t, size_t n, int d, int op, comm *c, void *stream) {
    return put(c, stream, (operation){ALL_REDUCE, d, op, 0, n, s, t, 0});
}
API int ncclReduce(const void *s, void *t, size_t n, int d, int op, int root, comm *c, void *stream) {
    return put(c, stream, (operation){REDUCE, d, op, root, n, s, t, 0});
}
API int ncclBroadcast(const void *s, void *t, size_t n, int d, int root, comm *c, void *stream) {
    return put(c, stream, (operation){BROADCAST, d, 0, root, n, s, t, 0});
}
API int ncclReduceScatter(const void *s, void *t, size_t n, int d, int op, comm *c, void *stream) {
    return put(c, stream, (operation){REDUCE_SCATTER, d, op, 0, n, s, t, 0});
}
API int ncclAllGather(const void *s, void *t, size_t n, int d, comm *c, void *stream) {
    return put(c, stream, (operation){ALL_GATHER, d, 0, 0, n, s, t, 0});
}
API int ncclSend(const void *s, size_t n, int d, int peer, comm *c, void *stream) {
    return put(c, stream, (operation){SEND, d, 0, peer, n, s, NULL, 0});
}
API int ncclRecv(void *t, size_t n, int d, int peer, comm *c, void *stream) {
    return put(c, stream, (operation){RECV, d, 0, peer, n, NULL, t, 0});
}

#ifdef ALL_TO_ALL /* libraries before 2.28 have it not */
API int ncclAlltoAll(const void *s, void *t, size_t n, int d, comm *c, void *stream) {
    int code = __atomic_exchange_n(&next_failure, 0, __ATOMIC_SEQ_CST);
    if (code) return code;
    size_t part = n * size_of(d);
    ncclGroupStart();
    for (int peer = 0; peer < c->size; peer++) {
        ncclSend((const char *)s + (size_t)peer * part, n, d, peer, c, stream);
        ncclRecv((char *)t + (size_t)peer * part, n, d, peer, c, stream);
    }
    return ncclGroupEnd();
}
#endif

API int ncclGetUniqueId(unique_id *id) {
    memset(id, 0, sizeof *id);
    const char *named = getenv("NCCL_COMM_ID");
    if (named) snprintf(id->internal, sizeof id->internal, "at %s", named);
    else snprintf(id->internal, sizeof id->internal, "fake %d", __atomic_add_fetch(&serial, 1, __ATOMIC_SEQ_CST));
    return 0;
}

static int join(comm **made, int size, const char *id, int rank) {
    comm *c = calloc(1, sizeof *c);
    pthread_mutex_lock(&lock);
    world *w = worlds;
    while (w && (memcmp(w->id, id, 128) || w->joined == w->size)) w = w->next;
    if (!w) {
        w = calloc(1, sizeof *w);
        memcpy(w->id, id, 128);
        w->size = size;
        w->next = worlds;
        worlds = w;
    }
    w->joined++;
    /* Where the identity is an address, rank 0 listens at it if it is still told to; else the ranks never meet. */
    if (strncmp(id, "at ", 3) || (!rank && getenv("NCCL_COMM_ID"))) w->is_rooted = 1;
    pthread_cond_broadcast(&changed);
    while (w->joined < size || !w->is_rooted) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    c->of = w;
    c->rank = rank;
    c->size = size;
    *made = c;
    return 0;
}

API int ncclCommInitRank(comm **made, int size, unique_id id, int rank) {
    if (size < 1 || size > MOST || rank < 0 || rank >= size) return 4;
    return join(made, size, id.internal, rank);
}

API int ncclCommSplit(comm *c, int color, int key, comm **made, void *config) {
    (void)config;
    world *w = c->of;
    pthread_mutex_lock(&lock);
    while (w->split_left) pthread_cond_wait(&changed, &lock);
    w->colors[c->rank] = color;
    w->keys[c->rank] = key;
    if (++w->split_came == w->size) { w->split_left = w->size; w->split_came = 0; serial++; }
    pthread_cond_broadcast(&changed);
    while (!w->split_left) pthread_cond_wait(&changed, &lock);
    char id[128] = {0};
    int size = 0, rank = 0;
    snprintf(id, sizeof id, "split %d %d", serial, color);
    for (int other = 0; other < w->size; other++) {
        if (w->colors[other] != color) continue;
        size++;
        rank += w->keys[other] < w->keys[c->rank] || (w->keys[other] == w->keys[c->rank] && other < c->rank);
    }
    w->split_left--;
    pthread_cond_broadcast(&changed);
    while (w->split_left) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    *made = NULL;
    return color < 0 ? 0 : join(made, size, id, rank);
}

API int ncclCommUserRank(comm *c, int *rank) { *rank = c->rank; return 0; }
API int ncclCommCount(comm *c, int *size) { *size = c->size; return 0; }
API int ncclCommGetAsyncError(comm *c, int *error) { *error = c->failure; return 0; }
API int ncclCommDestroy(comm *c) { (void)c; return 0; }

API int ncclCommAbort(comm *c) {
    pthread_mutex_lock(&lock);
    c->aborted = 1;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    return 0;
}

API const char *ncclGetLastError(comm *c) { (void)c; return "the fake library was told to"; }

/* For tests: the next call fails; a communicator has an asynchronous error; calls so far. */
API void fake_fail_next(int code) { next_failure = code; }
API void fake_fail(comm *c, int code) { c->failure = code; }
API int fake_calls(void) { return calls; }
