/* jsload: JetStream on a raw socket, cheap on the client side.
 *
 * usage: jsload HOST PORT MODE MSGS SIZE WINDOW [STORAGE=file|memory] [SUBJECTS=1]
 *   MODE pub    create the stream LOAD on load.>, publish MSGS with at most WINDOW unacknowledged,
 *               wait for every PubAck
 *   MODE pull   (after pub) a durable pull consumer, batches of WINDOW, explicit ack of each message
 *   MODE put    as pub, on a stream that keeps one message a subject, like a KV bucket
 *   MODE get    (after put) MSGS direct gets of the last message of one subject or another, at most
 *               WINDOW unanswered
 *   MODE watch  (after put) MSGS times one after another: a consumer of the last message of one
 *               subject, its first message, and the consumer deleted
 *
 * Exit 0 only if every message was acknowledged.
 */
#define _GNU_SOURCE
#include <stdbool.h>

#include "wire.h"

enum { READ_BYTES = 8 << 20, WRITE_BYTES = 8 << 20, BATCH_BYTES = 64 << 10, SUBJECT_BYTES = 512 };
#define STREAM_CONFIG                                                                   \
    "{\"name\":\"LOAD\",\"subjects\":[\"load.>\"],\"storage\":\"%s\",\"num_replicas\":1," \
    "\"retention\":\"limits\",\"discard\":\"old\"}"
#define BUCKET_CONFIG                                                                   \
    "{\"name\":\"LOAD\",\"subjects\":[\"load.>\"],\"storage\":\"%s\",\"num_replicas\":1," \
    "\"retention\":\"limits\",\"discard\":\"new\",\"max_msgs_per_subject\":1,"             \
    "\"allow_direct\":true,\"allow_rollup_hdrs\":true,\"deny_delete\":true}"
#define WATCH_CONFIG                                                                     \
    "{\"stream_name\":\"LOAD\",\"config\":{\"name\":\"W\",\"ack_policy\":\"none\","             \
    "\"deliver_policy\":\"last_per_subject\",\"filter_subject\":\"load.%ld\","               \
    "\"mem_storage\":true}}"
#define CONSUMER_CONFIG                                                                  \
    "{\"stream_name\":\"LOAD\",\"config\":{\"durable_name\":\"C\",\"ack_policy\":\"explicit\"," \
    "\"deliver_policy\":\"all\",\"max_ack_pending\":100000,\"ack_wait\":30000000000}}"

static int fd, size, window, subjects = 1;
static long messages;
static const char *storage = "file";
static char *payload, *out;

typedef struct {
    char subject[SUBJECT_BYTES], reply[SUBJECT_BYTES];
    int header_bytes, total_bytes;
    char *data;
} Message;

static struct {
    char *bytes;
    size_t start, end;
} in;

static bool contains(const Message *message, const char *text) {
    return memmem(message->data, message->total_bytes, text, strlen(text));
}

/* Read more bytes; return false if there are none and we may not wait. */
static bool read_more(bool wait) {
    memmove(in.bytes, in.bytes + in.start, in.end - in.start);
    in.end -= in.start;
    in.start = 0;
    ssize_t got = recv(fd, in.bytes + in.end, READ_BYTES - in.end, wait ? 0 : MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN && !wait) return false;
    if (got <= 0) die("nothing more from the server");
    in.end += got;
    return true;
}

/* Parse `MSG subject sid [reply] total` or `HMSG subject sid [reply] headers total`. */
static void parse_line(char *line, Message *message) {
    char *field[6], *rest = line, *word;
    int count = 0;
    while (count < 6 && (word = strtok_r(NULL, " ", &rest))) field[count++] = word;
    int without_reply = line[0] == 'H' ? 5 : 4;
    if (count < without_reply) {
        fprintf(stderr, "not a message: %s\n", line);
        exit(1);
    }
    snprintf(message->subject, SUBJECT_BYTES, "%s", field[1]);
    snprintf(message->reply, SUBJECT_BYTES, "%s", count > without_reply ? field[3] : "");
    message->total_bytes = atoi(field[count - 1]);
    message->header_bytes = line[0] == 'H' ? atoi(field[count - 2]) : 0;
}

/* Take the message at the front if it is all there. Other operations are handled on the way. */
static bool take_message(Message *message) {
    char *line = in.bytes + in.start, copy[2048];
    char *end = memmem(line, in.end - in.start, "\r\n", 2);
    if (!end) return false;
    size_t line_bytes = end + 2 - line;
    if (line[0] != 'M' && line[0] != 'H') {
        if (line[0] == '-') fprintf(stderr, "server: %.*s\n", (int)line_bytes, line), exit(1);
        if (!strncmp(line, "PING", 4)) write_text(fd, "PONG\r\n");
        in.start += line_bytes;
        return take_message(message);
    }
    snprintf(copy, sizeof copy, "%.*s", (int)line_bytes - 2, line);
    parse_line(copy, message);
    size_t all_bytes = line_bytes + message->total_bytes + 2;
    if (in.end - in.start < all_bytes) return false;
    message->data = line + line_bytes;
    in.start += all_bytes;
    return true;
}

static bool next_message(Message *message, bool wait) {
    while (!take_message(message))
        if (!read_more(wait)) return false;
    return true;
}

static void request(const char *subject, const char *body, Message *message) {
    int length = sprintf(out, "PUB %s _INBOX.api %zu\r\n%s\r\n", subject, strlen(body), body);
    write_all(fd, out, length);
    do next_message(message, true);
    while (strcmp(message->subject, "_INBOX.api"));
}

static void must_succeed(const Message *message) {
    if (!contains(message, "\"error\"")) return;
    fprintf(stderr, "%.*s\n", message->total_bytes, message->data);
    exit(1);
}

static char *append_publish(char *at, long number) {
    at += sprintf(at, "PUB load.%ld _INBOX.a.%ld %d\r\n", number % subjects, number, size);
    memcpy(at, payload, size);
    memcpy(at + size, "\r\n", 2);
    return at + size + 2;
}

static bool is_publish_ack(const Message *message) {
    return contains(message, "\"seq\"") && !contains(message, "\"error\"");
}

static char *append_get(char *at, long number) {
    // Steps of a prime visit the subjects in an order that no cache likes.
    return at + sprintf(at, "PUB $JS.API.DIRECT.GET.LOAD.load.%ld _INBOX.g.%ld 0\r\n\r\n",
                        number * 7919 % subjects, number);
}

static bool is_found(const Message *message) {
    return message->header_bytes && message->total_bytes - message->header_bytes == size;
}

/* Ask until the window is full, then take every answer there is; wait for the first when nothing
 * more may be sent. Return how many answers were bad. */
static long run_window(char *(*append)(char *, long), bool (*is_good)(const Message *)) {
    Message message;
    long sent = 0, answered = 0, refused = 0;
    while (answered < messages) {
        char *at = out;
        while (sent < messages && sent - answered < window && at - out < BATCH_BYTES)
            at = append(at, sent++);
        write_all(fd, out, at - out);
        bool wait = sent == messages || sent - answered >= window;
        while (answered < messages && next_message(&message, wait)) {
            if (!is_good(&message) && !refused++)
                fprintf(stderr, "refused: %.*s\n", message.total_bytes, message.data);
            answered++;
            wait = false;
        }
    }
    return refused;
}

static int print_rate(const char *mode, double seconds, long refused) {
    printf("mode=%s storage=%s msgs=%ld size=%d window=%d secs=%.3f msgs/s=%.0f bad=%ld\n", mode,
           storage, messages, size, window, seconds, messages / seconds, refused);
    return refused != 0;
}

static int run_publish(const char *mode, const char *config_format) {
    Message message;
    char config[512];
    request("$JS.API.STREAM.DELETE.LOAD", "", &message);
    sprintf(config, config_format, storage);
    request("$JS.API.STREAM.CREATE.LOAD", config, &message);
    must_succeed(&message);
    double start = now_seconds();
    long refused = run_window(append_publish, is_publish_ack);
    return print_rate(mode, now_seconds() - start, refused);
}

static int run_get(void) {
    double start = now_seconds();
    long refused = run_window(append_get, is_found);
    return print_rate("get", now_seconds() - start, refused);
}

static int run_watch(void) {
    Message message;
    char config[512];
    long bad = 0;
    double start = now_seconds();
    for (long number = 0; number < messages; number++) {
        sprintf(config, WATCH_CONFIG, number * 7919 % subjects);
        request("$JS.API.CONSUMER.CREATE.LOAD.W", config, &message);
        must_succeed(&message);
        write_text(fd, "PUB $JS.API.CONSUMER.MSG.NEXT.LOAD.W _INBOX.watch 11\r\n{\"batch\":1}\r\n");
        next_message(&message, true);
        bad += message.total_bytes != size;
        request("$JS.API.CONSUMER.DELETE.LOAD.W", "", &message);
        must_succeed(&message);
    }
    return print_rate("watch", now_seconds() - start, bad);
}

static void request_batch(long number) {
    char body[64], line[192];
    int length = sprintf(body, "{\"batch\":%d,\"expires\":5000000000}", window);
    sprintf(line, "PUB $JS.API.CONSUMER.MSG.NEXT.LOAD.C _INBOX.p.%ld %d\r\n%s\r\n", number, length,
            body);
    write_text(fd, line);
}

/* A message without a reply subject is a status; 4xx says that the batch is over. */
static bool is_status(const Message *message) {
    return message->header_bytes && !message->reply[0];
}

static long pending_acks(void) {
    Message message;
    request("$JS.API.CONSUMER.INFO.LOAD.C", "", &message);
    char *found = memmem(message.data, message.total_bytes, "\"num_ack_pending\":", 18);
    return found ? atol(found + 18) : -1;
}

static int run_pull(void) {
    Message message;
    long got = 0, batches = 0, wanted = 0, pending = -1;
    request("$JS.API.CONSUMER.DELETE.LOAD.C", "", &message);
    request("$JS.API.CONSUMER.DURABLE.CREATE.LOAD.C", CONSUMER_CONFIG, &message);
    must_succeed(&message);

    double start = now_seconds();
    while (got < messages) {
        if (wanted <= 0) {
            request_batch(batches++);
            wanted = window;
        }
        char *at = out;
        bool wait = true;
        while (got < messages && wanted > 0 && at - out < WRITE_BYTES / 2 &&
               next_message(&message, wait)) {
            wait = false;
            if (is_status(&message)) {
                if (contains(&message, "NATS/1.0 4")) wanted = 0;
                continue;
            }
            got++;
            wanted--;
            at += sprintf(at, "PUB %s 4\r\n+ACK\r\n", message.reply);
        }
        write_all(fd, out, at - out);
    }
    double seconds = now_seconds() - start;
    for (int tries = 0; tries < 100 && (pending = pending_acks()); tries++) usleep(20000);
    double acknowledged_seconds = now_seconds() - start;
    printf("mode=pull msgs=%ld size=%d batch=%d secs=%.3f msgs/s=%.0f acked_secs=%.3f "
           "ack_pending=%ld\n",
           got, size, window, seconds, got / seconds, acknowledged_seconds, pending);
    return pending != 0;
}

int main(int argc, char **argv) {
    if (argc < 7) {
        fprintf(stderr, "usage: jsload HOST PORT pub|pull|put|get|watch MSGS SIZE WINDOW [STORAGE] [SUBJECTS]\n");
        return 2;
    }
    messages = atol(argv[4]);
    size = atoi(argv[5]);
    window = atoi(argv[6]);
    if (argc > 7) storage = argv[7];
    if (argc > 8) subjects = atoi(argv[8]);
    in.bytes = malloc(READ_BYTES + 1);
    out = malloc(WRITE_BYTES + size);
    payload = malloc(size + 1);
    memset(payload, 'x', size);
    fd = dial(argv[1], atoi(argv[2]));
    write_text(fd, "SUB _INBOX.> 1\r\n");
    if (!strcmp(argv[3], "pub")) return run_publish("pub", STREAM_CONFIG);
    if (!strcmp(argv[3], "put")) return run_publish("put", BUCKET_CONFIG);
    if (!strcmp(argv[3], "pull")) return run_pull();
    if (!strcmp(argv[3], "get")) return run_get();
    if (!strcmp(argv[3], "watch")) return run_watch();
    fprintf(stderr, "unknown mode %s\n", argv[3]);
    return 2;
}
