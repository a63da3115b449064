/* mixload: traffic as it comes. A thousand subjects, payloads log-uniform from 16 B to 64 KiB,
 * half of them with headers; a quarter of the subscribers each takes
 *   mix.>      all of it
 *   mix.N.*    a tenth of it
 *   mix.*.*    all of it, shared out in the queue group "blue"
 *   mix.>      all of it, shared out in the queue group "green"
 * Publishers replay a stream of messages that is built from a seed before the clock starts.
 * Every payload begins with a tag, publisher and number, by which each delivery is checked:
 * its subject and size, its order, and in the end that every one came as often as it should.
 *
 * usage: mixload HOST PORT PUBS SUBS MSGS [DISTINCT=0] [SEED=1]
 *   MSGS        in total, rounded up to whole replays of STREAM_MESSAGES a publisher
 *   DISTINCT=1  every subscriber has a sid of its own instead of sid 1
 *
 * Exit 0 only if every subscriber, and every queue group in total, got exactly its messages.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "wire.h"

enum { STREAM_MESSAGES = 1000, TENS = 10, HUNDREDS = 100, TAG_BYTES = 16 };
enum { PAYLOAD_BYTES_MIN = 16, PAYLOAD_BYTES_MAX = 64 << 10, HEAD_BYTES_MAX = 1024 };
enum { READ_BYTES = 1 << 20, RECEIVE_BUFFER_BYTES = 4 << 20 };
enum { STRAY_WAIT_MS = 20 };
enum { EVERYTHING, A_TENTH, BLUE, GREEN, ROLES };

static const char *queue_name[ROLES] = {"", "", "blue ", "green "};

static const char *host;
static int port, publishers, subscribers, replays;
static bool distinct;
static uint64_t seed;

/* A message of a publisher's stream, as a subscriber should see it. */
typedef struct {
    char subject[16];
    int ten, header_bytes, total_bytes;
} Message;

typedef struct {
    int fd;
    char *stream;
    size_t stream_bytes;
    Message message[STREAM_MESSAGES];
} Publisher;

/* Who a delivery is counted for: one plain subscriber, or a queue group. */
typedef struct {
    int ten;         /* the tenth it takes, or -1 */
    uint32_t *count; /* deliveries of message k of publisher p, at p * STREAM_MESSAGES + k */
    uint32_t *turns; /* how often a publisher's stream began anew; groups keep no order */
    int *last;
} Receiver;

typedef struct {
    int fd;
    Receiver *receiver;
    bool in_order;
    size_t skip_bytes; /* of the current payload, still to come */
    size_t carried_bytes;
    char carried[HEAD_BYTES_MAX]; /* a head that the last read cut */
} Subscriber;

static Publisher *publisher;
static long long delivered_messages, delivered_bytes;

static void fail(const char *what, const char *detail) {
    fprintf(stderr, "%s: %.80s\n", what, detail);
    exit(1);
}

/* splitmix64: the same stream on every machine for the same seed. */
static uint64_t random_bits(void) {
    uint64_t bits = (seed += 0x9e3779b97f4a7c15);
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111eb;
    return bits ^ (bits >> 31);
}

static int random_payload_bytes(void) {
    double unit = (random_bits() >> 11) / 9007199254740992.0;
    return PAYLOAD_BYTES_MIN * exp(unit * log((double)PAYLOAD_BYTES_MAX / PAYLOAD_BYTES_MIN));
}

static char *append_payload(char *at, int who, int number, int bytes) {
    int tagged = sprintf(at, "%04x%012x", who, number);
    for (int k = tagged; k < bytes; k++) at[k] = 'a' + k % 26;
    return at + bytes;
}

static char *append_message(char *at, int who, int number) {
    Message *message = &publisher[who].message[number];
    int payload_bytes = random_payload_bytes();
    char headers[128] = "";
    message->ten = random_bits() % TENS;
    sprintf(message->subject, "mix.%d.%d", message->ten, (int)(random_bits() % HUNDREDS));
    if (random_bits() & 1)
        message->header_bytes = sprintf(headers, "NATS/1.0\r\nTrace-Id: %016lx\r\nKind: %d\r\n\r\n",
                                        (unsigned long)random_bits(), number % 7);
    message->total_bytes = message->header_bytes + payload_bytes;
    if (message->header_bytes)
        at += sprintf(at, "HPUB %s %d %d\r\n%s", message->subject, message->header_bytes,
                      message->total_bytes, headers);
    else
        at += sprintf(at, "PUB %s %d\r\n", message->subject, payload_bytes);
    at = append_payload(at, who, number, payload_bytes);
    memcpy(at, "\r\n", 2);
    return at + 2;
}

static void build_stream(int who) {
    char *stream = malloc(STREAM_MESSAGES * (size_t)(HEAD_BYTES_MAX + PAYLOAD_BYTES_MAX));
    char *at = stream;
    for (int number = 0; number < STREAM_MESSAGES; number++) at = append_message(at, who, number);
    publisher[who].stream = stream;
    publisher[who].stream_bytes = at - stream;
}

static void *publish(void *argument) {
    Publisher *self = argument;
    for (int k = 0; k < replays; k++) write_all(self->fd, self->stream, self->stream_bytes);
    ping(self->fd);
    return NULL;
}

static Receiver *new_receiver(int ten) {
    Receiver *receiver = calloc(1, sizeof *receiver);
    receiver->ten = ten;
    receiver->count = calloc((size_t)publishers * STREAM_MESSAGES, sizeof *receiver->count);
    receiver->turns = calloc(publishers, sizeof *receiver->turns);
    receiver->last = calloc(publishers, sizeof *receiver->last);
    for (int p = 0; p < publishers; p++) receiver->last[p] = STREAM_MESSAGES;
    return receiver;
}

static void subscribe(Subscriber *subscriber, int number, int epoll, Receiver **group) {
    int role = number % ROLES, ten = role == A_TENTH ? number / ROLES % TENS : -1;
    int receive_bytes = RECEIVE_BUFFER_BYTES;
    char line[64], pattern[16];
    bool grouped = role == BLUE || role == GREEN;
    if (grouped && !group[role]) group[role] = new_receiver(-1);
    subscriber->receiver = grouped ? group[role] : new_receiver(ten);
    subscriber->in_order = !grouped;
    sprintf(pattern, role == A_TENTH ? "mix.%d.*" : role == BLUE ? "mix.*.*" : "mix.>", ten);
    sprintf(line, "SUB %s %s%d\r\n", pattern, queue_name[role], distinct ? number + 1 : 1);
    subscriber->fd = dial(host, port);
    write_text(subscriber->fd, line);
    ping(subscriber->fd);
    setsockopt(subscriber->fd, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    fcntl(subscriber->fd, F_SETFL, O_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = subscriber};
    epoll_ctl(epoll, EPOLL_CTL_ADD, subscriber->fd, &event);
}

static void count_delivery(Subscriber *subscriber, const char *tag, const char *subject,
                           int header_bytes, int total_bytes) {
    Receiver *receiver = subscriber->receiver;
    unsigned who = STREAM_MESSAGES, number = STREAM_MESSAGES;
    char digits[TAG_BYTES + 1] = "";
    memcpy(digits, tag, TAG_BYTES);
    if (sscanf(digits, "%4x%12x", &who, &number) != 2 || who >= (unsigned)publishers ||
        number >= STREAM_MESSAGES)
        fail("unknown tag", digits);
    Message *message = &publisher[who].message[number];
    if (strcmp(subject, message->subject) || header_bytes != message->header_bytes ||
        total_bytes != message->total_bytes)
        fail("not the message that was published", subject);
    receiver->count[who * STREAM_MESSAGES + number]++;
    if (subscriber->in_order && (int)number <= receiver->last[who]) receiver->turns[who]++;
    receiver->last[who] = number;
    delivered_messages++;
    delivered_bytes += total_bytes;
}

/* Take a MSG or HMSG whose head (control line, headers, tag) is all there; return the head's
 * length, or 0 if it is not. */
static size_t take_message(Subscriber *subscriber, char *bytes, size_t length, size_t line_bytes) {
    char subject[32];
    int header_bytes = 0, total_bytes;
    bool with_headers = bytes[0] == 'H';
    int fields = with_headers
        ? sscanf(bytes, "HMSG %31s %*d %d %d", subject, &header_bytes, &total_bytes) - 1
        : sscanf(bytes, "MSG %31s %*d %d", subject, &total_bytes);
    if (fields != 2) fail("not a message", bytes);
    size_t head_bytes = line_bytes + header_bytes + TAG_BYTES;
    if (head_bytes > length) return 0;
    count_delivery(subscriber, bytes + head_bytes - TAG_BYTES, subject, header_bytes, total_bytes);
    subscriber->skip_bytes = total_bytes - header_bytes - TAG_BYTES + 2;
    return head_bytes;
}

/* Take one operation off the front; return its length, or 0 if more bytes are needed. */
static size_t take(Subscriber *subscriber, char *bytes, size_t length) {
    char *end = memmem(bytes, length < HEAD_BYTES_MAX ? length : HEAD_BYTES_MAX, "\r\n", 2);
    if (!end) return 0;
    *end = 0;
    size_t line_bytes = end + 2 - bytes, taken = line_bytes;
    if (!strcmp(bytes, "PING"))
        write_text(subscriber->fd, "PONG\r\n");
    else if (bytes[0] != 'I') /* INFO may come at any time, and changes nothing here */
        taken = take_message(subscriber, bytes, length, line_bytes);
    *end = '\r';
    return taken;
}

static void consume(Subscriber *subscriber, char *bytes, size_t length) {
    while (length) {
        size_t step = subscriber->skip_bytes < length ? subscriber->skip_bytes : length;
        subscriber->skip_bytes -= step;
        if (!step) step = take(subscriber, bytes, length);
        if (!step) break;
        bytes += step;
        length -= step;
    }
    if (length > HEAD_BYTES_MAX) fail("no end of line", bytes);
    memcpy(subscriber->carried, bytes, length);
    subscriber->carried_bytes = length;
}

static void receive(Subscriber *subscriber) {
    static char bytes[HEAD_BYTES_MAX + READ_BYTES];
    size_t carried = subscriber->carried_bytes;
    memcpy(bytes, subscriber->carried, carried);
    ssize_t got = read(subscriber->fd, bytes + carried, READ_BYTES);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) fail("closed by the server", carried ? subscriber->carried : "");
    consume(subscriber, bytes, carried + got);
}

static int receive_ready(int epoll, int wait_ms) {
    struct epoll_event events[256];
    int ready = epoll_wait(epoll, events, 256, wait_ms);
    for (int k = 0; k < ready; k++) receive(events[k].data.ptr);
    return ready;
}

static bool is_due(const Receiver *receiver, const Message *message) {
    return receiver->ten < 0 || receiver->ten == message->ten;
}

static long long due_messages(const Receiver *receiver) {
    long long due = 0;
    for (int p = 0; p < publishers; p++)
        for (int k = 0; k < STREAM_MESSAGES; k++)
            due += is_due(receiver, &publisher[p].message[k]) * replays;
    return due;
}

static void check_exact(const Receiver *receiver, bool in_order) {
    for (int p = 0; p < publishers; p++) {
        for (int k = 0; k < STREAM_MESSAGES; k++) {
            Message *message = &publisher[p].message[k];
            uint32_t due = is_due(receiver, message) ? replays : 0;
            if (receiver->count[p * STREAM_MESSAGES + k] != due)
                fail("lost, repeated or misrouted", message->subject);
        }
        if (in_order && receiver->turns[p] > (uint32_t)replays) fail("out of order", "");
    }
}

static void receive_all(int epoll, long long due) {
    double last = now_seconds();
    while (delivered_messages < due) {
        if (receive_ready(epoll, 1000)) last = now_seconds();
        if (now_seconds() - last > SILENCE_SECONDS_MAX) {
            fprintf(stderr, "stalled: got %lld of %lld messages\n", delivered_messages, due);
            exit(1);
        }
    }
}

static void print_figures(double seconds, size_t published_bytes) {
    long published = (long)publishers * replays * STREAM_MESSAGES;
    double bytes = (double)published_bytes * replays + delivered_bytes;
    printf("pubs=%d subs=%d msgs=%ld secs=%.3f pub/s=%.0f delivered/s=%.0f total/s=%.0f "
           "MB/s=%.1f\n",
           publishers, subscribers, published, seconds, published / seconds,
           delivered_messages / seconds, (published + delivered_messages) / seconds,
           bytes / seconds / 1e6);
}

static void read_arguments(int count, char **arguments) {
    if (count < 6) {
        fprintf(stderr, "usage: mixload HOST PORT PUBS SUBS MSGS [DISTINCT] [SEED]\n");
        exit(2);
    }
    host = arguments[1];
    port = atoi(arguments[2]);
    publishers = atoi(arguments[3]);
    subscribers = atoi(arguments[4]);
    long stream_messages = (long)publishers * STREAM_MESSAGES;
    replays = (atol(arguments[5]) + stream_messages - 1) / stream_messages;
    distinct = count > 6 && atoi(arguments[6]);
    seed = count > 7 ? strtoull(arguments[7], NULL, 10) : 1;
}

int main(int argc, char **argv) {
    read_arguments(argc, argv);
    int epoll = epoll_create1(0);
    Receiver *group[ROLES] = {0};
    Subscriber *subscriber = calloc(subscribers, sizeof *subscriber);
    pthread_t *thread = calloc(publishers, sizeof *thread);
    publisher = calloc(publishers, sizeof *publisher);
    size_t stream_bytes = 0;
    for (int p = 0; p < publishers; p++) {
        build_stream(p);
        publisher[p].fd = dial(host, port);
        stream_bytes += publisher[p].stream_bytes;
    }
    long long due = 0;
    for (int i = 0; i < subscribers; i++) {
        subscribe(&subscriber[i], i, epoll, group);
        bool first = subscriber[i].in_order || i < ROLES; /* a group counts once */
        due += first ? due_messages(subscriber[i].receiver) : 0;
    }

    double start = now_seconds();
    for (int p = 0; p < publishers; p++) pthread_create(&thread[p], NULL, publish, &publisher[p]);
    receive_all(epoll, due);
    double seconds = now_seconds() - start;
    for (int p = 0; p < publishers; p++) pthread_join(thread[p], NULL);

    while (receive_ready(epoll, STRAY_WAIT_MS)) continue; /* anything more is too much */
    for (int i = 0; i < subscribers; i++)
        check_exact(subscriber[i].receiver, subscriber[i].in_order);
    print_figures(seconds, stream_bytes);
    return 0;
}
