package livetables;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.channels.Channels;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.security.GeneralSecurityException;
import java.security.KeyStore;
import java.security.cert.Certificate;
import java.security.cert.CertificateFactory;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.Condition;
import java.util.concurrent.locks.ReentrantLock;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;
import org.apache.arrow.memory.BufferAllocator;
import org.apache.arrow.memory.RootAllocator;
import org.apache.arrow.vector.BigIntVector;
import org.apache.arrow.vector.BitVector;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.Float8Vector;
import org.apache.arrow.vector.TimeStampMicroTZVector;
import org.apache.arrow.vector.VarBinaryVector;
import org.apache.arrow.vector.VarCharVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.arrow.vector.types.FloatingPointPrecision;
import org.apache.arrow.vector.types.pojo.ArrowType;
import org.apache.arrow.vector.types.pojo.Field;
import org.apache.arrow.vector.types.pojo.FieldType;
import org.apache.arrow.vector.types.pojo.Schema;
import org.apache.spark.sql.ForeachWriter;

/**
 * Sends the events of {@link MatchOperator} to the server, as frames of Arrow over HTTP, in order, one at a time.
 *
 * <p>In real time a frame is what has come in a few milliseconds, and always whole records with all that they change. In a
 * micro-batch records come sorted by key, so that an offset proves nothing about earlier ones: there, everything that this
 * partition has of the batch is one frame, sent in parts that the server stages until the last one.
 *
 * <p>Spark's thread fills one buffer while another thread sends the other. A full buffer makes Spark wait. A server that is
 * down is waited for; a frame that it refuses ends the query, which is then restarted where its checkpoint is.
 *
 * <p>The server shows a frame first and stores it a little later. Until then the frame is kept here, and sent again to a
 * server that has lost it in a restart; where no other frame follows in real time, an empty one finds that out. The last
 * frame of a batch is answered only when all are on disk.
 */
public final class FrameWriter extends ForeachWriter<byte[]> {
  private static final int FRAME_ROWS = 20_000;
  private static final int FRAME_BYTES = 4 << 20;
  private static final long FRAME_NANOS_MAX = TimeUnit.MILLISECONDS.toNanos(50);
  private static final long QUIET_NANOS = TimeUnit.SECONDS.toNanos(1); // until the server is asked for what it has on disk
  private static final int KEPT_FRAMES = 64;
  private static final int KEPT_BYTES = 16 << 20;
  private static final long ANSWER_SECONDS = 60;
  private static final long RETRY_MS_MAX = 2_000;
  private static final int UNAUTHORIZED = 401, CONFLICT = 409, TOO_MANY = 429;
  private static final Set<String> ROLES = Set.of("viewer", "operator", "pipeline"); // of keys in a key file
  private static final Set<String> LOST = Set.of("missing_frames", "missing_parts");

  private static final Map<String, HttpClient> CLIENTS = new ConcurrentHashMap<>(); // by the authorities they trust
  private static final BufferAllocator MEMORY = new RootAllocator();
  private static final ObjectMapper JSON = new ObjectMapper();

  private final String planJson, targetJson, token;

  private transient JsonNode target;
  private transient Frame filling, sending; // exchanged under the lock
  private transient ReentrantLock lock;
  private transient AtomicInteger users; // of the two buffers
  private transient Condition changed;
  private transient Thread task, sender;
  private transient Throwable failure;
  private transient boolean isClosing, isStopped;

  /**
   * @param planJson what there is to send: tables, scopes and views
   * @param targetJson where to: url, ca (PEM text or null), token_file (or null), generation, run, query, real_time, frame_ms,
   *     patience_seconds
   * @param token the pipeline's key
   */
  public FrameWriter(String planJson, String targetJson, String token) {
    this.planJson = planJson;
    this.targetJson = targetJson;
    this.token = token;
  }

  @Override
  public boolean open(long partition, long epoch) {
    target = MatchOperator.parsed(targetJson);
    JsonNode plan = MatchOperator.parsed(planJson);
    filling = new Frame(plan);
    sending = new Frame(plan);
    lock = new ReentrantLock();
    changed = lock.newCondition();
    failure = null;
    isClosing = false;
    isStopped = false;
    users = new AtomicInteger(2);
    task = Thread.currentThread();
    Connection connection = new Connection(target, token, partition, epoch, filling.places());
    boolean isRealTime = target.get("real_time").asBoolean();
    long frameNanos = TimeUnit.MILLISECONDS.toNanos(target.get("frame_ms").asLong());
    sender = new Thread(() -> sendAll(connection, isRealTime, frameNanos), "frames-" + partition);
    sender.setDaemon(true);
    sender.start();
    return true;
  }

  @Override
  public void process(byte[] event) {
    lock.lock();
    try {
      while (filling.isFull() && failure == null) {
        changed.await();
      }
      throwFailure();
      boolean wasEmpty = filling.isEmpty();
      filling.add(event);
      if (wasEmpty || filling.isFull()) {
        changed.signalAll();
      }
    } catch (InterruptedException interrupted) {
      Thread.currentThread().interrupt();
      throw new IllegalStateException("the query was stopped", interrupted);
    } finally {
      lock.unlock();
    }
  }

  /** Without an error, return only when the server has everything on disk. */
  @Override
  public void close(Throwable error) {
    if (sender == null) {
      return;
    }
    try {
      boolean hasFailed;
      lock.lock();
      try {
        hasFailed = failure != null;
        isClosing = error == null;
        isStopped = error != null; // what was not sent is dropped
        changed.signalAll();
      } finally {
        lock.unlock();
      }
      if (hasFailed) {
        Thread.interrupted(); // by the sender
      } else if (error != null) {
        sender.interrupt();
      }
      sender.join();
      if (hasFailed || error == null) {
        throwFailure();
      }
    } catch (InterruptedException interrupted) {
      sender.interrupt();
      Thread.currentThread().interrupt();
      throw new IllegalStateException("the query was stopped", interrupted);
    } finally {
      sender = null;
      leave();
    }
  }

  /** The last of the two to stop, Spark's thread or the sender, frees the memory. */
  private void leave() {
    if (users.decrementAndGet() == 0) {
      filling.close();
      sending.close();
    }
  }

  private void throwFailure() {
    if (failure != null) {
      throw new IllegalStateException(failure.getMessage(), failure);
    }
  }

  private void sendAll(Connection connection, boolean isRealTime, long frameNanos) {
    try {
      // Empty: the server sees at once whether a batch is missing before this one.
      connection.send(sending, true, false);
      boolean isLast = false;
      long waitNanos = frameNanos;
      while (!isLast) {
        boolean isAsking = isRealTime && connection.hasUnstored();
        isLast = take(isRealTime, waitNanos, isAsking ? QUIET_NANOS : Long.MAX_VALUE);
        long sent = System.nanoTime();
        connection.send(sending, isLast || (isRealTime && sending.isWhole()), isLast);
        // A server that needs longer for a frame gets fewer and larger ones, instead of all its time being spent on them.
        waitNanos = Math.max(frameNanos, Math.min(FRAME_NANOS_MAX, System.nanoTime() - sent));
      }
    } catch (Throwable error) {
      lock.lock();
      try {
        failure = error;
        changed.signalAll();
        if (!isClosing && !isStopped) {
          task.interrupt(); // which may wait for a record that comes much later, or never
        }
      } finally {
        lock.unlock();
      }
    } finally {
      leave();
    }
  }

  /**
   * Wait until there is something to send, or nothing for so long, and exchange the buffers; return whether nothing will
   * follow.
   */
  private boolean take(boolean isRealTime, long frameNanos, long quietNanos) throws InterruptedException {
    lock.lock();
    try {
      for (long quiet = quietNanos; filling.isEmpty() && !isClosing && quiet > 0;) {
        quiet = changed.awaitNanos(quiet);
      }
      if (isRealTime && !filling.isEmpty()) {
        long left = filling.firstNanos + frameNanos - System.nanoTime();
        while ((left > 0 || !filling.isWhole()) && !filling.isFull() && !isClosing) {
          if (left > 0) {
            changed.awaitNanos(left);
          } else {
            changed.awaitNanos(frameNanos);
          }
          left = filling.firstNanos + frameNanos - System.nanoTime();
        }
      }
      while (!isRealTime && !filling.isFull() && !isClosing) {
        changed.await();
      }
      Frame full = filling;
      filling = sending;
      sending = full;
      filling.clear();
      changed.signalAll();
      return isClosing;
    } finally {
      lock.unlock();
    }
  }

  /** A frame that the server refuses: a retry would not help. */
  public static final class RefusedException extends RuntimeException {
    RefusedException(String message) {
      super(message);
    }
  }

  /** A part of a frame as it was sent. Without its body it cannot be sent again. */
  private record Part(long frame, long number, boolean isCommit, int size, byte[] body) {
    Part withoutBody() {
      return new Part(frame, number, isCommit, size, null);
    }
  }

  /** One partition's connection to the server. */
  private static final class Connection {
    private final HttpClient client;
    private final URI uri;
    private final JsonNode target;
    private final long writer, epoch, patienceNanos;
    private final String query;
    private final String attempt = UUID.randomUUID().toString();
    private final Marks marks; // of the parts of this frame so far
    private final List<Part> kept = new ArrayList<>(); // in order, of the frames that are not on disk yet
    private String token;
    private long frame, part;
    private long newestFilled = -1; // the last frame that is not empty
    private long stored = -1; // the highest frame on disk
    private long keptBytes; // of `kept`, also where the bodies were too large to keep
    private long newestMs = -1; // of the records in the parts of this frame so far

    Connection(JsonNode target, String token, long writer, long epoch, int places) {
      this.target = target;
      query = target.get("query").asText();
      marks = new Marks(places);
      this.token = token;
      this.writer = writer;
      this.epoch = epoch;
      uri = URI.create(target.get("url").asText() + "/api/frames");
      patienceNanos = TimeUnit.SECONDS.toNanos(target.get("patience_seconds").asLong());
      client = CLIENTS.computeIfAbsent(target.get("ca").asText(""), Connection::client);
    }

    private static HttpClient client(String authorities) {
      HttpClient.Builder builder =
          HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).connectTimeout(Duration.ofSeconds(5));
      return (authorities.isEmpty() ? builder : builder.sslContext(trusting(authorities))).build();
    }

    private static SSLContext trusting(String pem) {
      try {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        ByteArrayInputStream text = new ByteArrayInputStream(pem.getBytes(StandardCharsets.UTF_8));
        for (Certificate each : CertificateFactory.getInstance("X.509").generateCertificates(text)) {
          store.setCertificateEntry("authority-" + store.size(), each);
        }
        TrustManagerFactory trust = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        trust.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, trust.getTrustManagers(), null);
        return context;
      } catch (GeneralSecurityException | IOException error) {
        throw new IllegalStateException("the certificates of pipeline.server_ca cannot be used: " + error, error);
      }
    }

    /** Whether records that were sent may not be on disk yet. In the middle of a frame no other can ask for that. */
    boolean hasUnstored() {
      return part == 0 && stored < newestFilled;
    }

    /** Send a part, and wait for the answer; at the end of a batch, it confirms that all of its frames are on disk. */
    void send(Frame sending, boolean isCommit, boolean isEnd) throws IOException, InterruptedException {
      marks.raise(sending.marks);
      newestFilled = sending.isEmpty() ? newestFilled : frame;
      newestMs = Math.max(newestMs, sending.newestMs);
      boolean isFull = frame - stored >= KEPT_FRAMES || keptBytes + sending.bytes >= KEPT_BYTES;
      byte[] body = sending.encoded(header(isCommit, isEnd, isEnd || (isCommit && isFull)), marks);
      Part newest = new Part(frame, part, isCommit, body.length, body);
      keep(newest);
      deliver(newest);
      if (isEnd && stored < frame) {
        throw new RefusedException("the server answered the end of batch " + epoch + " before it was on disk");
      }
      if (isCommit) {
        marks.clear();
        newestMs = -1;
      }
      frame += isCommit ? 1 : 0;
      part = isCommit ? 0 : part + 1;
    }

    private void keep(Part newest) {
      kept.add(newest);
      keptBytes += newest.size;
      if (keptBytes > KEPT_BYTES && !newest.isCommit) {
        // A frame larger than what may be kept: if the server loses it, the query is restarted.
        kept.replaceAll(Part::withoutBody);
      }
    }

    /** Send a part, and before it those that the server has lost. */
    private void deliver(Part newest) throws IOException, InterruptedException {
      Deque<Part> due = new ArrayDeque<>(List.of(newest));
      while (!due.isEmpty()) {
        Part next = due.peek();
        JsonNode answer = answer(next.body);
        if (answer.has("code")) {
          due = lost(next, newest, answer);
        } else {
          due.poll();
          MatchOperator.Horizon.note(query, answer);
          forget(answer.path("stored").asLong(next.isCommit ? next.frame : stored));
        }
      }
    }

    /** Return the parts to send again to a server that has lost those before `refused`. */
    private Deque<Part> lost(Part refused, Part newest, JsonNode answer) {
      long stored = answer.path("stored").asLong(this.stored);
      Deque<Part> again = new ArrayDeque<>();
      for (Part each : kept) {
        if (each.frame > stored) {
          again.add(each == kept.get(kept.size() - 1) ? newest : each);
        }
      }
      Part first = again.peek();
      boolean isThere = first != null && first.frame == stored + 1 && first.number == 0;
      boolean isRefused = refused.frame == stored + 1 && refused.number == 0; // although it is the next one
      if (!isThere || isRefused || again.stream().anyMatch(each -> each.body == null)) {
        throw new RefusedException(message(answer));
      }
      return again;
    }

    private void forget(long nowStored) {
      if (nowStored > stored) {
        stored = nowStored;
        kept.removeIf(each -> each.frame <= nowStored);
        keptBytes = kept.stream().mapToLong(Part::size).sum();
      }
    }

    /** Wait for the answer to a part, also while the server is down: it is accepted, or earlier parts are lost. */
    private JsonNode answer(byte[] body) throws IOException, InterruptedException {
      long giveUp = 0;
      long delay = 50;
      while (true) {
        String problem;
        try {
          HttpResponse<String> response = client.send(request(body), HttpResponse.BodyHandlers.ofString());
          int status = response.statusCode();
          JsonNode answer = json(response.body());
          if (status == 200 || (status == CONFLICT && LOST.contains(answer.path("code").asText()))) {
            return answer;
          }
          problem = answer.has("code") ? message(answer) : "the server answered with status " + status;
          if (status == UNAUTHORIZED && readTokenAgain()) {
            delay = 50;
          } else if (status < 500 && status != TOO_MANY && status != UNAUTHORIZED) {
            throw new RefusedException(problem);
          }
        } catch (IOException error) {
          problem = "the server at " + uri.getAuthority() + " does not answer: " + error;
        }
        long now = System.nanoTime();
        giveUp = giveUp == 0 ? now + patienceNanos : giveUp;
        if (now >= giveUp) {
          throw new IOException(problem);
        }
        Thread.sleep(delay);
        delay = Math.min(RETRY_MS_MAX, delay * 2);
      }
    }

    private HttpRequest request(byte[] body) {
      return HttpRequest.newBuilder(uri)
          .timeout(Duration.ofSeconds(ANSWER_SECONDS))
          .header("Authorization", "Bearer " + token)
          .header("Content-Type", "application/octet-stream")
          .POST(HttpRequest.BodyPublishers.ofByteArray(body))
          .build();
    }

    private ObjectNode header(boolean isCommit, boolean isEnd, boolean isDurable) {
      ObjectNode header = JSON.createObjectNode();
      header.put("generation", target.get("generation").asText());
      header.put("run", target.get("run").asLong());
      header.put("writer", writer);
      header.put("epoch", epoch);
      header.put("end", isEnd);
      header.put("attempt", attempt);
      header.put("frame", frame);
      header.put("part", part);
      header.put("commit", isCommit);
      header.put("durable", isDurable);
      header.put("kafka_ms", newestMs);
      header.put("sent_ms", System.currentTimeMillis());
      return header;
    }

    /** Read the pipeline's key again, which may have been replaced; return whether it was. */
    private boolean readTokenAgain() {
      String file = target.get("token_file").asText("");
      if (file.isEmpty()) {
        return false;
      }
      try {
        String found = keyOf("pipeline", Files.readAllLines(Path.of(file)));
        boolean isOther = found != null && !found.equals(token);
        token = found == null ? token : found;
        return isOther;
      } catch (IOException missing) {
        return false; // it may come back, or be on the driver's machine only
      }
    }

    /** Return the first key of a role in a key file, or else the first of an operator, as the server reads them. */
    private static String keyOf(String wanted, List<String> lines) {
      String operators = null;
      for (String line : lines) {
        String text = line.replace("\uFEFF", "").strip();
        if (text.isEmpty() || text.startsWith("#")) {
          continue;
        }
        String[] words = text.split("[ \t]+", 2);
        String role = words[0].toLowerCase(Locale.ROOT);
        boolean hasRole = words.length == 2 && ROLES.contains(role);
        String key = hasRole ? words[1] : text;
        if (hasRole && role.equals(wanted)) {
          return key;
        }
        if (operators == null && (!hasRole || role.equals("operator"))) {
          operators = key;
        }
      }
      return operators;
    }

    /** Return an answer; empty if something else than our server has sent it. */
    private static JsonNode json(String body) {
      try {
        return JSON.readTree(body);
      } catch (IOException notOurs) {
        return JSON.createObjectNode();
      }
    }

    private static String message(JsonNode answer) {
      return answer.path("code").asText() + ": " + answer.path("problem").asText() + "; " + answer.path("cure").asText();
    }
  }

  /** Rows on their way to the server, by stream, as Arrow vectors. */
  private static final class Frame {
    private final JsonNode plan;
    private final Rows[] tables, unknown, views, removed;
    private final Rows dead;
    private final String[] tableNames;
    private final MatchOperator.Type[][] types; // of the columns of each table
    private final int[] lefts, rights; // the tables of each view
    private final int scopes, offsetBits;
    final Marks marks;
    private final SideReader left = new SideReader(), right = new SideReader(), cause = new SideReader();
    private int events, rows;
    long bytes; // of the values in the rows
    long newestMs = -1; // of the records
    private boolean isWhole = true;
    long firstNanos;

    Frame(JsonNode plan) {
      this.plan = plan;
      scopes = Math.max(1, plan.get("scopes").size());
      offsetBits = plan.get("offset_bits").asInt();
      int count = plan.get("tables").size();
      marks = new Marks(count * scopes);
      types = new MatchOperator.Type[count][];
      tables = new Rows[count];
      unknown = new Rows[count];
      tableNames = new String[count];
      for (int table = 0; table < count; table++) {
        JsonNode node = plan.get("tables").get(table);
        tableNames[table] = node.get("publish").asText();
        types[table] = MatchOperator.Type.of(node.get("columns"));
        List<Field> fields = new ArrayList<>();
        fields.add(field("_id", "int64"));
        node.get("columns").forEach(column -> fields.add(field(column.get("name").asText(), column.get("type").asText())));
        fields.add(field("ts", "timestamp"));
        tables[table] = new Rows(tableNames[table], "rows", fields);
        unknown[table] = new Rows(tableNames[table], "unknown", List.of(field("_id", "int64"), field("field", "string")));
      }
      views = new Rows[plan.get("views").size()];
      removed = new Rows[views.length];
      lefts = new int[views.length];
      rights = new int[views.length];
      for (JsonNode node : plan.get("views")) {
        int index = node.get("index").asInt();
        lefts[index] = node.get("left").asInt();
        rights[index] = node.get("right").asInt();
        List<Field> fields = new ArrayList<>();
        node.get("columns").forEach(column -> fields.add(field(column.get("name").asText(), column.get("type").asText())));
        views[index] = new Rows(node.get("name").asText(), "rows", fields, sources(node.get("columns")));
        removed[index] = new Rows(node.get("name").asText(), "removed", List.of(field("_left_id", "int64")));
      }
      dead = new Rows(
          plan.get("dead_letters").asText(),
          "rows",
          List.of(field("source", "string"), field("_id", "int64"), field("ts", "timestamp"), field("raw", "binary")));
    }

    private static Source[] sources(JsonNode columns) {
      Source[] sources = new Source[columns.size()];
      for (int column = 0; column < sources.length; column++) {
        JsonNode node = columns.get(column);
        sources[column] = new Source(
            node.get("side").asText().equals("left"),
            node.get("kind").asText().charAt(0),
            node.get("column").asInt(),
            node.get("other").asInt());
      }
      return sources;
    }

    /** How many pairs of a table and a scope there are. */
    int places() {
      return types.length * scopes;
    }

    boolean isEmpty() {
      return events == 0;
    }

    boolean isFull() {
      return rows >= FRAME_ROWS || bytes >= FRAME_BYTES;
    }

    /** Whether it ends with the end of a record. */
    boolean isWhole() {
      return isWhole;
    }

    void add(byte[] event) {
      if (isEmpty()) {
        firstNanos = System.nanoTime();
      }
      events++;
      ByteBuffer buffer = ByteBuffer.wrap(event);
      isWhole = buffer.get() == 1;
      int table = buffer.getInt();
      int scope = buffer.getInt();
      cause.read(buffer, types[table]);
      newestMs = Math.max(newestMs, cause.time);
      while (buffer.hasRemaining()) {
        rows++;
        switch (buffer.get()) {
          case MatchOperator.OWN -> addOwn(table);
          case MatchOperator.DEAD -> addDead(table, buffer);
          case MatchOperator.UNKNOWN -> {
            int row = unknown[table].next();
            unknown[table].setLong(0, row, cause.id);
            bytes += unknown[table].setBytes(1, row, buffer);
          }
          case MatchOperator.ROW -> addRow(buffer);
          case MatchOperator.REMOVED -> {
            Rows rows = removed[buffer.getInt()];
            rows.setLong(0, rows.next(), buffer.getLong());
          }
          default -> throw new IllegalStateException("an event with an unknown entry");
        }
      }
      if (isWhole) {
        marks.raise(table * scopes + scope, (int) (cause.id >>> offsetBits), cause.id & ((1L << offsetBits) - 1));
      }
    }

    private void addOwn(int table) {
      Rows rows = tables[table];
      int row = rows.next();
      rows.setLong(0, row, cause.id);
      for (int column = 0; column < cause.columns; column++) {
        bytes += rows.set(column + 1, row, cause, column);
      }
      rows.setTime(cause.columns + 1, row, cause.time);
    }

    private void addDead(int table, ByteBuffer buffer) {
      int row = dead.next();
      dead.setText(0, row, tableNames[table]);
      dead.setLong(1, row, cause.id);
      dead.setTime(2, row, cause.time);
      bytes += dead.setBytes(3, row, buffer);
    }

    private void addRow(ByteBuffer buffer) {
      int index = buffer.getInt();
      SideReader l = side(buffer, left, lefts[index]);
      SideReader r = side(buffer, right, rights[index]);
      Rows rows = views[index];
      int row = rows.next();
      for (int column = 0; column < rows.sources.length; column++) {
        Source source = rows.sources[column];
        SideReader from = source.isLeft ? l : r;
        int place = source.column;
        if (from == null && source.otherColumn >= 0) { // the key is the same on both sides
          from = source.isLeft ? r : l;
          place = source.otherColumn;
        }
        if (from == null) {
          continue; // null
        }
        switch (source.kind) {
          case 'i' -> rows.setLong(column, row, from.id);
          case 't' -> rows.setTime(column, row, from.time);
          default -> bytes += rows.set(column, row, from, place);
        }
      }
    }

    private SideReader side(ByteBuffer buffer, SideReader reader, int table) {
      switch (buffer.get()) {
        case MatchOperator.NONE -> {
          return null;
        }
        case MatchOperator.CAUSE -> {
          return cause;
        }
        default -> {
          reader.read(buffer, types[table]);
          return reader;
        }
      }
    }

    byte[] encoded(ObjectNode header, Marks marks) throws IOException {
      ByteArrayOutputStream streams = new ByteArrayOutputStream((int) Math.min(bytes * 2 + 4096, FRAME_BYTES * 4L));
      ArrayNode described = header.putArray("streams");
      ArrayNode lengths = header.putArray("lengths");
      for (Rows[] group : List.of(tables, unknown, views, removed, new Rows[] {dead})) {
        for (Rows rows : group) {
          if (rows.count() > 0) {
            int before = streams.size();
            rows.write(streams);
            described.addObject().put("table", rows.table).put("kind", rows.kind);
            lengths.add(streams.size() - before);
          }
        }
      }
      ObjectNode marksByTable = header.putObject("marks");
      for (int place = 0; place < marks.offsets.length; place++) {
        if (marks.offsets[place].length > 0) {
          JsonNode table = plan.get("tables").get(place / scopes);
          JsonNode scope = plan.get("scopes").get(place % scopes);
          ObjectNode partitions = marksByTable.withObjectProperty(table.get("name").asText())
              .putObject(scope == null ? "" : scope.asText());
          for (int partition = 0; partition < marks.offsets[place].length; partition++) {
            if (marks.offsets[place][partition] >= 0) {
              partitions.put(String.valueOf(partition), marks.offsets[place][partition]);
            }
          }
        }
      }
      byte[] text = JSON.writeValueAsBytes(header);
      int padding = Math.floorMod(-(text.length + Long.BYTES), 64); // keeps the Arrow data aligned
      ByteBuffer body = ByteBuffer.allocate(Long.BYTES + text.length + padding + streams.size());
      body.order(ByteOrder.LITTLE_ENDIAN).putLong(text.length + padding).put(text);
      for (int space = 0; space < padding; space++) {
        body.put((byte) ' ');
      }
      return body.put(streams.toByteArray()).array();
    }

    void clear() {
      if (bytes > 2L * FRAME_BYTES) {
        close(); // or the room for a large record would stay, in every frame that had one
      }
      events = 0;
      rows = 0;
      bytes = 0;
      newestMs = -1;
      isWhole = true;
      marks.clear();
      for (Rows[] group : List.of(tables, unknown, views, removed, new Rows[] {dead})) {
        for (Rows each : group) {
          each.clear();
        }
      }
    }

    void close() {
      for (Rows[] group : List.of(tables, unknown, views, removed, new Rows[] {dead})) {
        for (Rows each : group) {
          each.close();
        }
      }
    }

    private static Field field(String name, String type) {
      ArrowType arrow = switch (type) {
        case "string" -> ArrowType.Utf8.INSTANCE;
        case "int64" -> new ArrowType.Int(64, true);
        case "double" -> new ArrowType.FloatingPoint(FloatingPointPrecision.DOUBLE);
        case "bool" -> ArrowType.Bool.INSTANCE;
        case "timestamp" -> new ArrowType.Timestamp(org.apache.arrow.vector.types.TimeUnit.MICROSECOND, "UTC");
        case "binary" -> ArrowType.Binary.INSTANCE;
        default -> throw new IllegalStateException("a column of type " + type);
      };
      return new Field(name, FieldType.nullable(arrow), null);
    }
  }

  /** The highest offsets of records, by table and scope, and by Kafka partition. */
  private static final class Marks {
    final long[][] offsets; // -1: none

    Marks(int places) {
      offsets = new long[places][];
      clear();
    }

    void raise(int place, int partition, long offset) {
      long[] before = offsets[place];
      if (before.length <= partition) {
        offsets[place] = Arrays.copyOf(before, partition + 1);
        Arrays.fill(offsets[place], before.length, partition + 1, -1);
      }
      offsets[place][partition] = Math.max(offsets[place][partition], offset);
    }

    void raise(Marks others) {
      for (int place = 0; place < offsets.length; place++) {
        for (int partition = 0; partition < others.offsets[place].length; partition++) {
          raise(place, partition, others.offsets[place][partition]);
        }
      }
    }

    void clear() {
      Arrays.fill(offsets, new long[0]);
    }
  }

  /** Where a view's column comes from: a side's id, its time, or a column of it. */
  private record Source(boolean isLeft, char kind, int column, int otherColumn) {}

  /** A record in an event: its values are read where they are. */
  private static final class SideReader {
    long id, time;
    int columns;
    byte[] bytes;
    int[] places = new int[16]; // of each value; -1: null
    int[] lengths = new int[16];

    void read(ByteBuffer buffer, MatchOperator.Type[] types) {
      id = buffer.getLong();
      time = buffer.getLong();
      int end = buffer.getInt();
      end += buffer.position();
      bytes = buffer.array();
      columns = 0;
      if (places.length < types.length) {
        places = new int[types.length];
        lengths = new int[types.length];
      }
      while (buffer.position() < end) {
        int column = columns++;
        if (buffer.get() == 0) {
          places[column] = -1;
          continue;
        }
        lengths[column] = switch (types[column]) {
          case STRING -> buffer.getInt();
          case BOOL -> 1;
          case INT64, DOUBLE -> Long.BYTES;
        };
        places[column] = buffer.position();
        buffer.position(buffer.position() + lengths[column]);
      }
    }
  }

  /** One stream of a frame: rows of one table, as Arrow vectors that are used again for the next frame. */
  private static final class Rows {
    final String table, kind;
    final Source[] sources; // of the columns of a view
    private final List<Field> fields;
    private VectorSchemaRoot root; // made with the first row
    private FieldVector[] vectors;
    private int count;

    Rows(String table, String kind, List<Field> fields, Source... sources) {
      this.table = table;
      this.kind = kind;
      this.fields = fields;
      this.sources = sources;
    }

    int count() {
      return count;
    }

    int next() {
      if (root == null) {
        root = VectorSchemaRoot.create(new Schema(fields), MEMORY);
        vectors = root.getFieldVectors().toArray(new FieldVector[0]);
      }
      return count++;
    }

    void setLong(int column, int row, long value) {
      ((BigIntVector) vectors[column]).setSafe(row, value);
    }

    void setTime(int column, int row, long ms) {
      ((TimeStampMicroTZVector) vectors[column]).setSafe(row, ms * 1000);
    }

    void setText(int column, int row, String text) {
      ((VarCharVector) vectors[column]).setSafe(row, text.getBytes(StandardCharsets.UTF_8));
    }

    /** Length and bytes, as an event has them; -1 is null. Return how many bytes it takes. */
    int setBytes(int column, int row, ByteBuffer buffer) {
      int length = buffer.getInt();
      if (length < 0) {
        return 0;
      }
      FieldVector vector = vectors[column];
      if (vector instanceof VarCharVector text) {
        text.setSafe(row, buffer.array(), buffer.position(), length);
      } else {
        ((VarBinaryVector) vector).setSafe(row, buffer.array(), buffer.position(), length);
      }
      buffer.position(buffer.position() + length);
      return length;
    }

    /** Return how many bytes the value takes. */
    int set(int column, int row, SideReader from, int place) {
      int at = from.places[place];
      if (at < 0) {
        return 0;
      }
      FieldVector vector = vectors[column];
      if (vector instanceof VarCharVector text) {
        text.setSafe(row, from.bytes, at, from.lengths[place]);
      } else if (vector instanceof BigIntVector number) {
        number.setSafe(row, ByteBuffer.wrap(from.bytes, at, Long.BYTES).getLong());
      } else if (vector instanceof Float8Vector number) {
        number.setSafe(row, ByteBuffer.wrap(from.bytes, at, Long.BYTES).getDouble());
      } else {
        ((BitVector) vector).setSafe(row, from.bytes[at]);
      }
      return from.lengths[place];
    }

    void write(ByteArrayOutputStream out) throws IOException {
      root.setRowCount(count);
      try (ArrowStreamWriter writer = new ArrowStreamWriter(root, null, Channels.newChannel(out))) {
        writer.writeBatch();
      }
    }

    void clear() {
      if (root != null && count > 0) {
        root.getFieldVectors().forEach(FieldVector::reset);
        root.setRowCount(0);
      }
      count = 0;
    }

    void close() {
      if (root != null) {
        root.close();
        root = null;
      }
    }
  }
}
