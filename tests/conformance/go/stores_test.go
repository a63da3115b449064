package conformance

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func makeBucket(
	t *testing.T, ctx context.Context, js jetstream.JetStream, more jetstream.KeyValueConfig,
) jetstream.KeyValue {
	t.Helper()
	more.Bucket = t.Name()
	bucket := must(js.CreateKeyValue(ctx, more))(t)
	t.Cleanup(func() { check(t, js.DeleteKeyValue(context.Background(), t.Name())) })
	return bucket
}

// Says what was seen of a key: `put a=1`; nothing marks the end of what was there at first.
func seen(entry jetstream.KeyValueEntry) string {
	if entry == nil {
		return "all"
	}
	words := map[jetstream.KeyValueOp]string{
		jetstream.KeyValuePut: "put", jetstream.KeyValueDelete: "delete", jetstream.KeyValuePurge: "purge",
	}
	return words[entry.Operation()] + " " + entry.Key() + "=" + string(entry.Value())
}

func changes(t *testing.T, watcher jetstream.KeyWatcher, count int) (texts []string) {
	t.Helper()
	for _, entry := range take(t, watcher.Updates(), count) {
		texts = append(texts, seen(entry))
	}
	return texts
}

func TestKeysHaveValues(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	bucket := makeBucket(t, ctx, js, jetstream.KeyValueConfig{History: 5})
	equal(t, must(bucket.PutString(ctx, "a", "1"))(t), uint64(1))
	equal(t, must(bucket.Update(ctx, "a", []byte("2"), 1))(t), uint64(2))
	_, err := bucket.Update(ctx, "a", []byte("3"), 1)
	equal(t, errors.Is(err, jetstream.ErrKeyExists), true)
	_, err = bucket.Create(ctx, "a", []byte("3"))
	equal(t, errors.Is(err, jetstream.ErrKeyExists), true)
	equal(t, must(bucket.Create(ctx, "b.c", []byte("x")))(t), uint64(3))
	equal(t, string(must(bucket.Get(ctx, "a"))(t).Value()), "2")
	equal(t, string(must(bucket.GetRevision(ctx, "a", 1))(t).Value()), "1")
	check(t, bucket.Delete(ctx, "a"))
	_, err = bucket.Get(ctx, "a")
	equal(t, errors.Is(err, jetstream.ErrKeyNotFound), true)
	equal(t, must(bucket.Create(ctx, "a", []byte("4")))(t), uint64(5))

	var history []string
	for _, entry := range must(bucket.History(ctx, "a"))(t) {
		history = append(history, seen(entry))
	}
	equal(t, history, []string{"put a=1", "put a=2", "delete a=", "put a=4"})
	keys := must(bucket.Keys(ctx))(t)
	slices.Sort(keys)
	equal(t, keys, []string{"a", "b.c"})
	check(t, bucket.Purge(ctx, "a"))
	equal(t, len(must(bucket.History(ctx, "a"))(t)), 1)
	check(t, bucket.PurgeDeletes(ctx, jetstream.DeleteMarkersOlderThan(-1)))
	equal(t, must(bucket.Status(ctx))(t).Values(), uint64(1))
}

func TestAWatcherSeesEveryChange(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	bucket := makeBucket(t, ctx, js, jetstream.KeyValueConfig{History: 3})
	must(bucket.PutString(ctx, "a", "1"))(t)
	must(bucket.PutString(ctx, "a", "2"))(t)
	watcher := must(bucket.WatchAll(ctx))(t)
	historian := must(bucket.Watch(ctx, "a", jetstream.IncludeHistory()))(t)
	equal(t, changes(t, watcher, 2), []string{"put a=2", "all"})
	equal(t, changes(t, historian, 3), []string{"put a=1", "put a=2", "all"})
	must(bucket.PutString(ctx, "b", "3"))(t)
	check(t, bucket.Delete(ctx, "a"))
	equal(t, changes(t, watcher, 2), []string{"put b=3", "delete a="})
	check(t, bucket.Purge(ctx, "b")) // What is purged before it is sent is not seen.

	equal(t, changes(t, watcher, 1), []string{"purge b="})
	equal(t, changes(t, historian, 1), []string{"delete a="})
	check(t, watcher.Stop())
	check(t, historian.Stop())
}

func TestKeysExpire(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	bucket := makeBucket(t, ctx, js, jetstream.KeyValueConfig{LimitMarkerTTL: time.Hour})
	watcher := must(bucket.WatchAll(ctx))(t)
	must(bucket.Create(ctx, "short", []byte("1"), jetstream.KeyTTL(time.Second)))(t)
	must(bucket.Create(ctx, "long", []byte("2")))(t)

	equal(t, changes(t, watcher, 4), []string{"all", "put short=1", "put long=2", "purge short="})
	_, err := bucket.Get(ctx, "short")
	equal(t, errors.Is(err, jetstream.ErrKeyNotFound), true)
	equal(t, must(bucket.Keys(ctx))(t), []string{"long"})
	check(t, watcher.Stop())
}

func TestABucketForgetsWhatIsOld(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	bucket := makeBucket(t, ctx, js, jetstream.KeyValueConfig{TTL: time.Second})
	must(bucket.PutString(ctx, "a", "1"))(t)
	for {
		_, err := bucket.Get(ctx, "a")
		if errors.Is(err, jetstream.ErrKeyNotFound) {
			return
		}
		check(t, err)
	}
}

func TestObjectsAreStoredInPieces(t *testing.T) {
	t.Parallel()
	js, ctx := withJetStream(t)
	name := t.Name()
	store := must(js.CreateObjectStore(ctx, jetstream.ObjectStoreConfig{Bucket: name}))(t)
	t.Cleanup(func() { check(t, js.DeleteObjectStore(context.Background(), name)) })
	watcher := must(store.Watch(ctx))(t)
	equal(t, take(t, watcher.Updates(), 1)[0] == nil, true)
	large := bytes.Repeat([]byte("0123456789abcdef"), 40_000)
	info := must(store.PutBytes(ctx, "large", large))(t)
	equal(t, []any{info.Size, info.Chunks}, []any{uint64(640_000), uint32(5)})
	must(store.PutString(ctx, "small", "hi"))(t)
	must(store.AddLink(ctx, "link", info))(t)

	equal(t, bytes.Equal(must(store.GetBytes(ctx, "large"))(t), large), true)
	equal(t, bytes.Equal(must(store.GetBytes(ctx, "link"))(t), large), true)
	equal(t, must(store.GetString(ctx, "small"))(t), "hi")
	check(t, store.UpdateMeta(ctx, "small", jetstream.ObjectMeta{Name: "tiny"}))
	check(t, store.Delete(ctx, "large"))
	_, err := store.GetInfo(ctx, "large")
	equal(t, errors.Is(err, jetstream.ErrObjectNotFound), true)
	var names []string
	for _, info := range must(store.List(ctx))(t) {
		names = append(names, info.Name)
	}
	slices.Sort(names)
	equal(t, names, []string{"link", "tiny"})
	for _, want := range []string{"large", "small", "link", "tiny", "large"} {
		got := take(t, watcher.Updates(), 1)[0]
		if got.Name != want {
			t.Fatalf("got %v, want %v", got, want)
		}
	}
	check(t, watcher.Stop())
	check(t, store.Seal(ctx))
	_, err = store.PutString(ctx, "late", "no")
	equal(t, err != nil, true)
}
