/* A lower bound for short collectives: a minimal program on UDP sockets without retransmission.
 * bench.py starts it with `cool run`, one rank per host, in order to use the multicast tree of that
 * job; see peers.Sockets.
 *
 *   plain_sockets OP BYTES REPS INTERVAL_MS RACKS FOLDER
 *
 * BYTES is defined as in mpi_collectives.c; RACKS lists the rack of each rank, separated by commas.
 * The first rank of each rack sums the vectors of its rack, then rank 0 sums those of the racks.
 * Messages for all ranks are multicast; parts are sent directly from or to rank 0. All ranks begin
 * a repetition at one instant (of CLOCK_MONOTONIC, which emulated hosts share) and end it before
 * the next. In FOLDER, each rank writes `address.RANK` when it is ready, and reads the address of
 * the tree from `tree` and the start time from `start`, which rank 0 writes. It writes RANK.ms with
 * the milliseconds from the instant to its end for each repetition, or -1 if a message was lost. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 7433, RANKS_MOST = 1024, WORDS_MOST = 4096 };
enum { UP, DOWN };
struct message { uint32_t repetition, sender, way, words[WORDS_MOST]; };
#define HEAD offsetof(struct message, words)

static int sock, me, ranks, repetition;
static double begun, patience;
static struct message arrived, sent;
static uint32_t result[WORDS_MOST];
/* Number of messages of this repetition that arrived in each direction. */
static int came[2];

static void fail(const char *what) {
    fprintf(stderr, "plain_sockets: rank %d: ", me);
    perror(what);
    exit(1);
}

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }

static void sleep_until(double instant) {
    struct timespec t = {(time_t)instant, (long)((instant - (time_t)instant) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) {}
}

static const char *in_folder(const char *folder, const char *form, ...) {
    static char path[2][400];
    static int turn;
    char *p = path[turn ^= 1];
    int n = snprintf(p, sizeof path[0], "%s/", folder);
    va_list rest;
    va_start(rest, form);
    vsnprintf(p + n, sizeof path[0] - n, form, rest);
    va_end(rest);
    return p;
}

/* Writes a file and renames it into place, so that other ranks never read a partial file. */
static void put(const char *path, const char *text) {
    char temporary[420];
    snprintf(temporary, sizeof temporary, "%s.%d", path, me);
    FILE *file = fopen(temporary, "w");
    if (!file || fputs(text, file) < 0 || fclose(file) || rename(temporary, path)) fail(path);
}

static void get(const char *path, char text[64]) {
    FILE *file;
    while (!(file = fopen(path, "r"))) usleep(2000);
    if (fscanf(file, "%63s", text) != 1) fail(path);
    fclose(file);
}

static struct sockaddr_in at(const char *address) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = inet_addr(address)};
    return a;
}

static uint32_t word(int place, int rank) { return place * 2654435761u + rank * 40503u + repetition * 97u; }

static void tell(const struct sockaddr_in *to, int way, int words) {
    sent.repetition = repetition, sent.sender = me, sent.way = way;
    if (sendto(sock, &sent, HEAD + words * 4, 0, (const void *)to, sizeof *to) < 0) fail("sendto");
}

/* Waits until `count` messages of this repetition have arrived in this direction, and calls `take`
 * for each message. Returns 0 if the repetition times out. */
static int hear(int way, int count, void (*take)(int words)) {
    while (came[way] < count) {
        ssize_t got = recv(sock, &arrived, sizeof arrived, 0);
        if (got < 0 && now() > begun + patience) return 0;
        if (got < (ssize_t)HEAD || arrived.repetition != (uint32_t)repetition || arrived.way > DOWN || arrived.sender >= (uint32_t)ranks) continue;
        came[arrived.way]++;
        take((int)((got - HEAD) / 4));
    }
    return 1;
}

static void add(int words) { for (int i = 0; i < words; i++) result[i] += arrived.words[i]; }
static void keep(int words) { memcpy(result, arrived.words, words * 4); }
static void place(int words) { memcpy(result + arrived.sender * words, arrived.words, words * 4); }
/* In a reduction, sums arrive upward and the result downward. */
static void add_or_keep(int words) { arrived.way == UP ? add(words) : keep(words); }
static void place_or_keep(int words) { arrived.way == UP ? place(words) : keep(words); }

int main(int argc, char **argv) {
    if (argc != 7) { fprintf(stderr, "usage: plain_sockets OP BYTES REPS INTERVAL_MS RACKS FOLDER\n"); return 2; }
    me = atoi(getenv("COOL_RANK")), ranks = atoi(getenv("COOL_SIZE"));
    const char *op = argv[1], *folder = argv[6];
    int words = atoi(argv[2]) / 4, reps = atoi(argv[3]), part = words / ranks;
    double interval = atof(argv[4]) * 1e-3;
    if (ranks > RANKS_MOST || words > WORDS_MOST) { fprintf(stderr, "plain_sockets: too many bytes or ranks\n"); return 2; }
    int bcasts = !strcmp(op, "bcast"), sums = !strcmp(op, "reduce") || !strcmp(op, "allreduce"), scatters = !strcmp(op, "scatter");
    int gathers = !strcmp(op, "gather") || !strcmp(op, "allgather"), to_all = !strncmp(op, "all", 3) || bcasts;
    if (!bcasts && !sums && !scatters && !gathers) { fprintf(stderr, "plain_sockets: unknown operation %s\n", op); return 2; }

    char own[64] = "", text[64];
    struct ifaddrs *list;
    if (getifaddrs(&list)) fail("getifaddrs");
    for (; list; list = list->ifa_next) {
        if (!list->ifa_addr || list->ifa_addr->sa_family != AF_INET) continue;
        const char *address = inet_ntoa(((struct sockaddr_in *)list->ifa_addr)->sin_addr);
        if (!strncmp(address, "10.0.", 5)) strcpy(own, address);
    }
    int off = 0, hops = 8;
    struct timeval look_up = {0, 3000};
    get(in_folder(folder, "tree"), text);
    struct sockaddr_in tree = at(text), any = at("0.0.0.0"), members[RANKS_MOST];
    struct ip_mreq join = {.imr_multiaddr = tree.sin_addr, .imr_interface.s_addr = inet_addr(own)};
    sock = socket(AF_INET, SOCK_DGRAM, 0);
    if (sock < 0 || bind(sock, (void *)&any, sizeof any) || setsockopt(sock, IPPROTO_IP, IP_ADD_MEMBERSHIP, &join, sizeof join)
        || setsockopt(sock, IPPROTO_IP, IP_MULTICAST_IF, &join.imr_interface, sizeof join.imr_interface)
        || setsockopt(sock, IPPROTO_IP, IP_MULTICAST_LOOP, &off, sizeof off) || setsockopt(sock, IPPROTO_IP, IP_MULTICAST_TTL, &hops, sizeof hops)
        || setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &look_up, sizeof look_up)) fail("socket");
    put(in_folder(folder, "address.%d", me), own);

    /* The number of vectors that this rank sums: those of the other ranks in its rack if it is the
     * first rank of the rack, and at rank 0 also those of the other racks. */
    int rack[RANKS_MOST], leader = -1, adds = 0;
    char *next = argv[5];
    for (int r = 0; r < ranks; r++) {
        get(in_folder(folder, "address.%d", r), text);
        members[r] = at(text);
        rack[r] = (int)strtol(next, &next, 10);
        next += *next == ',';
    }
    for (int r = ranks; r-- > 0;) if (rack[r] == rack[me]) leader = r;
    for (int r = 0; r < ranks; r++) {
        int first = 1;
        for (int before = 0; before < r; before++) first &= rack[before] != rack[r];
        adds += r != me && ((leader == me && rack[r] == rack[me]) || (me == 0 && first && rack[r] != rack[0]));
    }
    if (me == 0) {
        snprintf(text, sizeof text, "%.6f", now() + 0.3);
        put(in_folder(folder, "start"), text);
    }
    get(in_folder(folder, "start"), text);
    double start = atof(text);
    FILE *times = fopen(in_folder(folder, "%d.ms", me), "w");
    if (!times) fail("times");
    patience = interval * 0.9;
    for (repetition = 0; repetition < reps; repetition++) {
        begun = start + repetition * interval;
        came[UP] = came[DOWN] = 0;
        for (int i = 0; i < words; i++) result[i] = sums || !me ? word(i, me) : 0;
        sleep_until(begun);
        int ok = 1, right = 1;
        if (sums) {
            ok = hear(UP, adds, add_or_keep);
            memcpy(sent.words, result, words * 4);
            if (ok && me) tell(&members[me == leader ? 0 : leader], UP, words);
        } else if (gathers && me == 0) {
            ok = hear(UP, ranks - 1, place_or_keep);
        } else if (gathers) {
            for (int i = 0; i < part; i++) sent.words[i] = word(i, me);
            tell(&members[0], UP, part);
        } else if (scatters && me == 0) {
            for (int r = 1; r < ranks; r++) {
                for (int i = 0; i < part; i++) sent.words[i] = word(i, r);
                tell(&members[r], DOWN, part);
            }
        }
        if (ok && to_all && me == 0) {
            memcpy(sent.words, result, words * 4);
            tell(&tree, DOWN, words);
        } else if (me && (to_all || scatters)) {
            ok &= hear(DOWN, 1, keep);
        }
        double ended = now();
        if (ok && scatters && me) for (int i = 0; i < part; i++) right &= result[i] == word(i, me);
        if (ok && bcasts) for (int i = 0; i < words; i++) right &= result[i] == word(i, 0);
        if (ok && gathers && (to_all || !me)) for (int i = 0; i < words; i++) right &= result[i] == word(i % part, i / part);
        if (ok && sums && (to_all || !me)) for (int i = 0; i < words; i++) {
            uint32_t sum = 0;
            for (int r = 0; r < ranks; r++) sum += word(i, r);
            right &= result[i] == sum;
        }
        if (!right) { fprintf(stderr, "plain_sockets: rank %d: repetition %d is wrong\n", me, repetition); return 1; }
        fprintf(times, "%.4f\n", ok ? (ended - begun) * 1e3 : -1.0);
    }
    return fclose(times) != 0;
}
