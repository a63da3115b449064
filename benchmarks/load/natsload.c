/* natsload: fan-out, as cheap as possible on the client side, so that what it measures is the
 * server. P publishers write batches built before the clock starts, S subscribers only count
 * bytes; the clock stops when every subscriber has every message.
 *
 * usage: natsload HOST PORT PUBS SUBS MSGS SIZE [SUBJECTS=1] [QUEUE=0] [DISTINCT=0] [HOLD=0]
 *   MSGS        in total, shared out between the publishers
 *   SUBJECTS>1  publishers cycle over that many subjects, subscribers use a wildcard
 *   QUEUE=1     the subscribers are one queue group
 *   DISTINCT=1  subscriber i uses sid i+1 instead of sid 1: no two get the same bytes
 *   HOLD=1      stay connected until stdin closes, so that the server's memory can be read
 * SUBS=0 measures publishing alone, until the server has answered a PING behind it all.
 *
 * Exit 0 only if every subscriber got exactly the bytes it was due.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/epoll.h>

#include "wire.h"

enum { BATCH_BYTES = 64 << 10, READ_BYTES = 1 << 20, RECEIVE_BUFFER_BYTES = 4 << 20 };
enum { STRAY_WAIT_MS = 20, PING_BYTES = 6 };

static const char *host;
static int port, publishers, subscribers, size, subjects;
static long messages; /* of one publisher */
static bool queue, distinct, hold;

typedef struct {
    int fd, sid;
    long long due_bytes, got_bytes;
} Subscriber;

typedef struct {
    int fd;
    char *bytes;
    size_t *ends; /* ends[k]: where message k of the batch ends */
    long length;  /* messages in the batch: whole cycles over the subjects */
} Publisher;

static void subject_name(char *name, long number) {
    if (subjects > 1)
        sprintf(name, "test.%ld", number % subjects);
    else
        strcpy(name, "test");
}

static void build_batch(Publisher *publisher, long first_subject) {
    long cycles = 1 + BATCH_BYTES / ((size + 24L) * subjects);
    publisher->length = cycles * subjects;
    publisher->ends = malloc(publisher->length * sizeof *publisher->ends);
    publisher->bytes = malloc(publisher->length * (size + 64L));
    char *at = publisher->bytes, name[32];
    for (long k = 0; k < publisher->length; k++) {
        subject_name(name, first_subject + k);
        at += sprintf(at, "PUB %s %d\r\n", name, size);
        memset(at, 'x', size);
        at += size;
        *at++ = '\r';
        *at++ = '\n';
        publisher->ends[k] = at - publisher->bytes;
    }
}

static void *publish(void *argument) {
    Publisher *publisher = argument;
    for (long left = messages; left > 0; left -= publisher->length) {
        long count = left < publisher->length ? left : publisher->length;
        write_all(publisher->fd, publisher->bytes, publisher->ends[count - 1]);
    }
    ping(publisher->fd);
    return NULL;
}

static long long due_bytes(int sid) {
    long *count = calloc(subjects, sizeof *count);
    for (int p = 0; p < publishers; p++)
        for (long k = 0; k < messages; k++) count[(p + k) % subjects]++;
    long long bytes = 0;
    for (int s = 0; s < subjects; s++) {
        char name[32], line[96];
        subject_name(name, s);
        bytes += count[s] * (sprintf(line, "MSG %s %d %d\r\n", name, sid, size) + size + 2LL);
    }
    free(count);
    return bytes;
}

static void subscribe(Subscriber *subscriber, int number, int epoll) {
    /* Sids of a queue group have one width, so that its total does not depend on who got what. */
    int sid = !distinct ? 1 : queue ? 1000 + number : number + 1;
    int receive_bytes = RECEIVE_BUFFER_BYTES;
    char line[96];
    subscriber->fd = dial(host, port);
    sprintf(line, "SUB %s %s%d\r\n", subjects > 1 ? "test.*" : "test", queue ? "q " : "", sid);
    write_text(subscriber->fd, line);
    ping(subscriber->fd);
    setsockopt(subscriber->fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    fcntl(subscriber->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = subscriber};
    epoll_ctl(epoll, EPOLL_CTL_ADD, subscriber->fd, &event);
    subscriber->sid = sid;
}

/* The only capital P that a server sends a subscriber is that of a PING: our subjects and
 * payloads have none. It is found wherever the read was cut, at the speed of memchr. */
static long count_pings(const char *bytes, size_t length) {
    long pings = 0;
    const char *end = bytes + length;
    while ((bytes = memchr(bytes, 'P', end - bytes))) {
        pings++;
        bytes++;
    }
    return pings;
}

/* Read once from a subscriber that has something; return how many bytes of messages came. */
static long long receive(Subscriber *subscriber) {
    static char bytes[READ_BYTES];
    ssize_t got = read(subscriber->fd, bytes, sizeof bytes);
    if (got < 0 && errno == EAGAIN) return 0;
    if (got <= 0) {
        fprintf(stderr, "subscriber with sid %d: closed after %lld of %lld bytes\n",
                subscriber->sid, subscriber->got_bytes, subscriber->due_bytes);
        exit(1);
    }
    long pings = count_pings(bytes, got);
    for (long k = 0; k < pings; k++) write_text(subscriber->fd, "PONG\r\n");
    subscriber->got_bytes += got - pings * PING_BYTES;
    return got - pings * PING_BYTES;
}

/* Wait for something to read, at most `wait_ms`; return how many bytes of messages came. */
static long long receive_ready(int epoll, int wait_ms) {
    struct epoll_event events[256];
    long long bytes = 0;
    int ready = epoll_wait(epoll, events, 256, wait_ms);
    for (int k = 0; k < ready; k++) bytes += receive(events[k].data.ptr);
    return bytes;
}

static void receive_all(int epoll, long long due) {
    long long total = 0;
    double last = now_seconds();
    while (total < due) {
        long long bytes = receive_ready(epoll, 1000);
        if (bytes) last = now_seconds();
        total += bytes;
        if (now_seconds() - last > SILENCE_SECONDS_MAX) {
            fprintf(stderr, "stalled: got %lld of %lld bytes\n", total, due);
            exit(1);
        }
    }
}

static void check_exact(const Subscriber *subscriber, long long due) {
    long long got = 0, wrong = 0;
    for (int i = 0; i < subscribers; i++) {
        got += subscriber[i].got_bytes;
        wrong += !queue && subscriber[i].got_bytes != subscriber[i].due_bytes;
    }
    if (!wrong && got == due) return;
    fprintf(stderr, "got %lld bytes instead of %lld; %lld subscribers wrong\n", got, due, wrong);
    exit(1);
}

static void print_figures(double seconds) {
    double published = (double)messages * publishers / seconds;
    double delivered = published * (queue && subscribers ? 1 : subscribers);
    double total = published + delivered;
    printf("pubs=%d subs=%d msgs=%ld size=%d subjects=%d secs=%.3f pub/s=%.0f delivered/s=%.0f "
           "total/s=%.0f MB/s=%.1f\n",
           publishers, subscribers, messages * publishers, size, subjects, seconds, published,
           delivered, total, total * size / 1e6);
    fflush(stdout);
}

static void read_arguments(int count, char **arguments) {
    if (count < 7) {
        fprintf(stderr, "usage: natsload HOST PORT PUBS SUBS MSGS SIZE "
                        "[SUBJECTS] [QUEUE] [DISTINCT] [HOLD]\n");
        exit(2);
    }
    host = arguments[1];
    port = atoi(arguments[2]);
    publishers = atoi(arguments[3]);
    subscribers = atoi(arguments[4]);
    messages = atol(arguments[5]) / publishers;
    size = atoi(arguments[6]);
    subjects = count > 7 ? atoi(arguments[7]) : 1;
    queue = count > 8 && atoi(arguments[8]);
    distinct = count > 9 && atoi(arguments[9]);
    hold = count > 10 && atoi(arguments[10]);
}

int main(int argc, char **argv) {
    read_arguments(argc, argv);
    int epoll = epoll_create1(0);
    Subscriber *subscriber = calloc(subscribers + 1, sizeof *subscriber);
    Publisher *publisher = calloc(publishers, sizeof *publisher);
    pthread_t *thread = calloc(publishers, sizeof *thread);
    long long due = 0;
    for (int i = 0; i < subscribers; i++) {
        subscribe(&subscriber[i], i, epoll);
        bool same = i && subscriber[i].sid == subscriber[i - 1].sid;
        subscriber[i].due_bytes = same ? subscriber[i - 1].due_bytes : due_bytes(subscriber[i].sid);
        due += subscriber[i].due_bytes;
    }
    if (queue && subscribers) due /= subscribers;
    for (int i = 0; i < publishers; i++) {
        publisher[i].fd = dial(host, port);
        build_batch(&publisher[i], i);
    }

    double start = now_seconds();
    for (int i = 0; i < publishers; i++) pthread_create(&thread[i], NULL, publish, &publisher[i]);
    receive_all(epoll, due);
    double delivered = now_seconds();
    for (int i = 0; i < publishers; i++) pthread_join(thread[i], NULL);
    double published = now_seconds();

    while (receive_ready(epoll, STRAY_WAIT_MS)) continue; /* anything more is too much */
    check_exact(subscriber, due);
    print_figures((subscribers ? delivered : published) - start);
    if (hold) while (getchar() != EOF) continue;
    return 0;
}
