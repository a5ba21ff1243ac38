package livetables;

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.lang.reflect.Field;
import java.nio.ByteBuffer;
import java.nio.charset.CharacterCodingException;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.EnumSet;
import java.util.HashMap;
import java.util.Iterator;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.NoSuchElementException;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.locks.LockSupport;
import java.util.regex.Pattern;
import org.apache.kafka.clients.consumer.ConsumerInterceptor;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.spark.sql.Column;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.api.java.UDF1;
import org.apache.spark.sql.api.java.UDF3;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.streaming.ExpiredTimerInfo;
import org.apache.spark.sql.streaming.MapState;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StatefulProcessor;
import org.apache.spark.sql.streaming.TTLConfig;
import org.apache.spark.sql.streaming.TimeMode;
import org.apache.spark.sql.streaming.TimerValues;
import org.apache.spark.sql.streaming.ValueState;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.util.Clock;
import scala.Tuple2;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Keeps, per scope and key, the records that have come, and emits for each new one an event: the record itself and
 * everything that it changes in the views. An event is bytes, as {@link FrameWriter} reads them. A record comes as bytes
 * too, as {@link Parser} makes them.
 *
 * <p>A scope is a column that views join on; a record comes once for each scope that its table has. Spark calls the
 * operator once per record in real time, and once per key and batch in micro-batches: each record is handled on its own,
 * so both give the same. State knows a record by its id, which is its Kafka partition and offset.
 *
 * <p>Where a table does not keep all records, the server alone knows how far back it goes, and answers the writers with
 * it. Older records leave the state when their key is read, or else once in a while, by a timer. What they still make
 * until then the server does not take.
 *
 * <p>An event begins with a byte (1 if it is the last part of its record), the table, the scope, and the record: id,
 * time, length of its values, values. Entries follow, each with a byte for its kind:
 *
 * <pre>
 * OWN        the record is a row of its table
 * DEAD       the record could not be parsed: length (-1: null) and bytes of its value
 * UNKNOWN    a field that is not a column: length and bytes of its name
 * ROW        a row of a view: the view, the left side, the right side; a side is NONE, CAUSE (the record itself), or
 *            OTHER with id, time, length and bytes of its values
 * REMOVED    the row of this left record without a match: the view and the left id
 * </pre>
 */
public final class MatchOperator extends StatefulProcessor<String, byte[], byte[]> {
  static final byte OWN = 0, DEAD = 1, UNKNOWN = 2, ROW = 3, REMOVED = 4;
  static final byte NONE = 0, CAUSE = 1, OTHER = 2;

  /** A record with more matches than fit is emitted in parts, so that what is made of one does not grow without bound. */
  private static final int PART_BYTES = 1 << 20;

  private static final ObjectMapper JSON = new ObjectMapper();

  /** Options of the source: an option of Spark's, and one of ours. */
  private static final String RECORDS_MAX = "maxOffsetsPerTrigger", BYTES_MAX = "livetables.maxBytesPerTrigger";

  /** Records without a key meet nobody: they are only spread over the partitions. */
  private static final int SPREAD = 64;
  private static final char NO_KEY = '-';

  private final String planJson;
  private final String query; // by which its writers have noted how far back tables go

  private transient String[] names; // of tables
  private transient boolean isLimited; // whether a table does not keep all its records
  private transient long sweepMs;
  private transient ValueState<Long> sweep; // when the key at hand is looked at again, for records that are too old
  private transient Map<String, Horizon> horizons; // by table, for the key at hand
  private transient int[] ownScopes; // by table: that in which a record is emitted as a row of its table
  private transient View[][] asLeft; // by scope and table
  private transient View[][] asRight;
  private transient MapState<Long, byte[]>[] rows; // by table: matched bits, time and values of its records
  private transient ValueState<byte[]>[] latest; // by table: id, time and values of its latest record
  private transient List<Kept>[] cached; // by table, for the key at hand
  private transient Kept[] cachedLatest; // by table, for the key at hand; meaningless until it is read
  private transient boolean[] isLatestRead;
  private transient Event event;
  private int tables;

  public MatchOperator(String planJson, String query) {
    this.planJson = planJson;
    this.query = query;
  }

  /** Parse what was read for a table, with the columns _id, ts and value. */
  public static Dataset<Row> records(Dataset<Row> read, int table, String planJson) {
    Parser parser = new Parser(planJson, table);
    Column[] columns = {functions.col("_id"), functions.col("ts"), functions.col("value")};
    if (scopes(parsed(planJson), table).length == 1) {
      UDF3<Long, Long, byte[], byte[]> one = parser::record;
      return read.select(functions.udf(one, DataTypes.BinaryType).apply(columns).as("record"));
    }
    UDF3<Long, Long, byte[], byte[][]> many = parser::records;
    return read.select(functions.explode(
        functions.udf(many, DataTypes.createArrayType(DataTypes.BinaryType)).apply(columns)).as("record"));
  }

  /** The events of the records of all tables, of the query of this name. */
  public static Dataset<byte[]> events(Dataset<Row> records, String planJson, String query) {
    TimeMode timers = parsed(planJson).get("sweep_seconds").asLong() > 0 ? TimeMode.ProcessingTime() : TimeMode.None();
    UDF1<byte[], String> key = new Keys(planJson)::key;
    return records
        .groupBy(functions.udf(key, DataTypes.StringType).apply(functions.col("record")).as("key"))
        .as(Encoders.STRING(), Encoders.BINARY())
        .transformWithState(new MatchOperator(planJson, query), timers, OutputMode.Update(), Encoders.BINARY());
  }

  /** What is made of a value of a table, for those who want to know it without a query. */
  public static byte[] record(byte[] value, int table, String planJson) {
    return new Parser(planJson, table).record(0L, 0L, value);
  }

  /** The scopes that a table has; one that no view joins has the first of all for its own, see flow/plan.py. */
  private static int[] scopes(JsonNode plan, int table) {
    JsonNode scopes = plan.get("tables").get(table).get("scopes");
    int[] numbers = new int[Math.max(1, scopes.size())];
    for (int place = 0; place < scopes.size(); place++) {
      numbers[place] = scopes.get(place).asInt();
    }
    return numbers;
  }

  @Override
  @SuppressWarnings("unchecked")
  public void init(OutputMode outputMode, TimeMode timeMode) {
    JsonNode plan = parsed(planJson);
    tables = plan.get("tables").size();
    names = new String[tables];
    ownScopes = new int[tables];
    for (int table = 0; table < tables; table++) {
      names[table] = plan.get("tables").get(table).get("name").asText();
      ownScopes[table] = scopes(plan, table)[0];
    }
    sweepMs = plan.get("sweep_seconds").asLong() * 1000;
    isLimited = sweepMs > 0;
    if (isLimited) {
      sweep = getHandle().getValueState("sweep", Encoders.LONG(), TTLConfig.NONE());
    }
    int scopes = Math.max(1, plan.get("scopes").size());
    asLeft = new View[scopes * tables][];
    asRight = new View[scopes * tables][];
    Arrays.fill(asLeft, new View[0]);
    Arrays.fill(asRight, new View[0]);
    boolean[] keepsRows = new boolean[tables];
    boolean[] keepsLatest = new boolean[tables];
    for (JsonNode node : plan.get("views")) {
      View view = new View(node);
      asLeft[view.scope * tables + view.left] = with(asLeft[view.scope * tables + view.left], view);
      asRight[view.scope * tables + view.right] = with(asRight[view.scope * tables + view.right], view);
      keepsRows[view.left] = true;
      keepsRows[view.right] |= view.join != Join.NATURAL;
      keepsLatest[view.right] |= view.join == Join.NATURAL;
    }
    rows = new MapState[tables];
    latest = new ValueState[tables];
    for (int table = 0; table < tables; table++) {
      if (keepsRows[table]) {
        rows[table] = getHandle().getMapState("rows_" + table, Encoders.LONG(), Encoders.BINARY(), TTLConfig.NONE());
      }
      if (keepsLatest[table]) {
        latest[table] = getHandle().getValueState("latest_" + table, Encoders.BINARY(), TTLConfig.NONE());
      }
    }
    cached = new List[tables];
    cachedLatest = new Kept[tables];
    isLatestRead = new boolean[tables];
    event = new Event();
  }

  @Override
  public scala.collection.Iterator<byte[]> handleInputRows(
      String key, scala.collection.Iterator<byte[]> records, TimerValues timers) {
    begin();
    boolean hasKey = key.charAt(0) != NO_KEY;
    if (isLimited && hasKey) {
      sweepSoon(timers.getCurrentProcessingTimeInMs());
    }
    return CollectionConverters.asScala(new Iterator<byte[]>() {
      @Override
      public boolean hasNext() {
        while (event.parts.isEmpty() && records.hasNext()) {
          handle(hasKey, ByteBuffer.wrap(records.next()));
        }
        return !event.parts.isEmpty();
      }

      @Override
      public byte[] next() {
        if (!hasNext()) {
          throw new NoSuchElementException();
        }
        return event.parts.poll();
      }
    });
  }

  /** Remove the records of a key that are too old, for none of the key may ever come again. */
  @Override
  public scala.collection.Iterator<byte[]> handleExpiredTimer(
      String key, TimerValues timers, ExpiredTimerInfo expired) {
    begin();
    boolean isEmpty = true;
    for (int table = 0; table < tables; table++) {
      isEmpty &= rows[table] == null || kept(table).isEmpty();
      isEmpty &= latest[table] == null || latest(table) == null;
    }
    if (isEmpty) {
      sweep.clear();
    } else {
      sweepAgain(timers.getCurrentProcessingTimeInMs());
    }
    return CollectionConverters.asScala(List.<byte[]>of().iterator());
  }

  /** Register the timer of a key that has none, or one that was registered while the clock was ahead. */
  private void sweepSoon(long now) {
    Long due = sweep.get();
    if (due != null && due - now <= sweepMs) {
      return;
    }
    if (due != null) {
      getHandle().deleteTimer(due);
    }
    sweepAgain(now);
  }

  /** Register the next timer of a key, by the clock by which Spark lets it expire: in real time not the machine's. */
  private void sweepAgain(long now) {
    long due = now + sweepMs;
    getHandle().registerTimer(due);
    sweep.update(due);
  }

  /** Begin with another key. */
  private void begin() {
    Arrays.fill(cached, null);
    Arrays.fill(isLatestRead, false);
    horizons = isLimited ? Horizon.of(query) : Map.of();
  }

  private void handle(boolean hasKey, ByteBuffer record) {
    int table = record.getInt();
    int scope = record.getInt();
    Kept cause = new Kept(record.getLong(), record.getLong());
    boolean isDead = record.get() == Parser.DEAD;
    if (isDead) {
      byte[] value = bytes(record);
      cause.values = new byte[0];
      event.begin(table, scope, cause);
      event.dead(value);
      event.end();
      return;
    }
    byte[][] unknown = new byte[record.getInt()][];
    for (int field = 0; field < unknown.length; field++) {
      unknown[field] = bytes(record);
    }
    cause.values = Arrays.copyOfRange(record.array(), record.position(), record.limit());
    event.begin(table, scope, cause);
    if (scope == ownScopes[table]) {
      event.own();
      for (byte[] field : unknown) {
        event.unknown(field);
      }
    }
    int place = scope * tables + table;
    if (hasKey) {
      match(table, asLeft[place], asRight[place], cause);
    } else {
      withoutKey(asLeft[place], asRight[place]);
    }
    event.end();
  }

  /** Length (-1: null) and bytes, as {@link Bytes#putBytes} writes them. */
  private static byte[] bytes(ByteBuffer buffer) {
    int length = buffer.getInt();
    if (length < 0) {
      return null;
    }
    byte[] bytes = new byte[length];
    buffer.get(bytes);
    return bytes;
  }

  /** A null key never matches: the record is a row without a match where its side is the one that a view keeps. */
  private void withoutKey(View[] leftOf, View[] rightOf) {
    for (View view : leftOf) {
      if (view.join == Join.LEFT || view.join == Join.NATURAL) {
        event.row(view, Kept.CAUSE, null);
      }
    }
    for (View view : rightOf) {
      if (view.join == Join.ASOF) {
        event.row(view, null, Kept.CAUSE);
      }
    }
  }

  private void match(int table, View[] leftOf, View[] rightOf, Kept cause) {
    for (View view : leftOf) {
      switch (view.join) {
        case INNER, LEFT -> {
          List<Kept> rights = kept(view.right);
          for (Kept right : rights) {
            event.row(view, Kept.CAUSE, right);
          }
          if (view.join == Join.LEFT && rights.isEmpty()) {
            event.row(view, Kept.CAUSE, null);
          } else if (view.join == Join.LEFT) {
            // After a crash the server may have shown it without a match: then it came before its first match.
            event.removed(view, cause.id);
            cause.matched |= view.bit;
          }
        }
        case NATURAL -> event.row(view, Kept.CAUSE, latest(view.right));
        case ASOF -> {
          Kept next = null; // the left record that follows this one: from its time on, it is the better match
          for (Kept left : kept(view.left)) {
            if (left.isAfter(cause) && (next == null || next.isAfter(left))) {
              next = left;
            }
          }
          for (Kept right : kept(view.right)) {
            if (view.reaches(cause, right) && (next == null || next.time > right.time)) {
              event.row(view, Kept.CAUSE, right);
            }
          }
        }
      }
    }
    for (View view : rightOf) {
      switch (view.join) {
        case INNER, LEFT -> {
          for (Kept left : kept(view.left)) {
            event.row(view, left, Kept.CAUSE);
            if (view.join == Join.LEFT && (left.matched & view.bit) == 0) {
              event.removed(view, left.id);
              left.matched |= view.bit;
              rows[view.left].updateValue(left.id, left.packed());
            }
          }
        }
        case NATURAL -> {
          Kept before = latest(view.right);
          if (before == null || cause.isAfter(before)) {
            for (Kept left : kept(view.left)) {
              event.row(view, left, Kept.CAUSE);
            }
          }
        }
        case ASOF -> {
          Kept best = null;
          for (Kept left : kept(view.left)) {
            if (view.reaches(left, cause) && (best == null || left.isAfter(best))) {
              best = left;
            }
          }
          event.row(view, best, Kept.CAUSE);
        }
      }
    }
    keep(table, cause);
  }

  /** The records of a table with the key at hand. */
  private List<Kept> kept(int table) {
    if (cached[table] == null) {
      List<Kept> found = new ArrayList<>();
      List<Kept> old = new ArrayList<>();
      scala.collection.Iterator<Tuple2<Long, byte[]>> state = rows[table].iterator();
      while (state.hasNext()) {
        Tuple2<Long, byte[]> entry = state.next();
        Kept record = Kept.unpacked(entry._1(), entry._2());
        (isTooOld(table, record) ? old : found).add(record);
      }
      for (Kept record : old) {
        rows[table].removeKey(record.id);
      }
      cached[table] = found;
    }
    return cached[table];
  }

  /** The latest record of a table with the key at hand, or null. */
  private Kept latest(int table) {
    if (!isLatestRead[table]) {
      byte[] packed = latest[table].get();
      cachedLatest[table] = packed == null
          ? null
          : Kept.unpacked(ByteBuffer.wrap(packed).getLong(), Arrays.copyOfRange(packed, Long.BYTES, packed.length));
      if (cachedLatest[table] != null && isTooOld(table, cachedLatest[table])) {
        latest[table].clear();
        cachedLatest[table] = null;
      }
      isLatestRead[table] = true;
    }
    return cachedLatest[table];
  }

  private boolean isTooOld(int table, Kept record) {
    Horizon horizon = horizons.get(names[table]);
    return horizon != null && horizon.reaches(record);
  }

  private void keep(int table, Kept record) {
    if (isTooOld(table, record)) {
      return;
    }
    if (rows[table] != null) {
      rows[table].updateValue(record.id, record.packed());
      if (cached[table] != null) {
        cached[table].add(record);
      }
    }
    if (latest[table] != null) {
      Kept before = latest(table);
      if (before == null || record.isAfter(before)) {
        byte[] packed = record.packed();
        latest[table].update(
            ByteBuffer.allocate(Long.BYTES + packed.length).putLong(record.id).put(packed).array());
        cachedLatest[table] = record;
      }
    }
  }

  static JsonNode parsed(String json) {
    try {
      return JSON.readTree(json);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static View[] with(View[] views, View view) {
    View[] more = Arrays.copyOf(views, views.length + 1);
    more[views.length] = view;
    return more;
  }

  /** The newest record of a table that is not kept, as the server has sent it. It only moves forward. */
  record Horizon(long time, long id) {
    private static final int QUERIES_MAX = 64;
    private static final Map<String, Map<String, Horizon>> KNOWN = new ConcurrentHashMap<>(); // by query and table

    /** Note how far back the tables of a query go, by the answer to a frame. */
    static void note(String query, JsonNode answer) {
      JsonNode received = answer.path("horizons");
      if (received.isEmpty()) {
        return;
      }
      Map<String, Horizon> horizons = new HashMap<>();
      received.fields().forEachRemaining(each ->
          horizons.put(each.getKey(), new Horizon(each.getValue().get(0).asLong(), each.getValue().get(1).asLong())));
      if (KNOWN.size() >= QUERIES_MAX) {
        KNOWN.clear(); // of queries that have ended; the others are sent again
      }
      KNOWN.put(query, horizons);
    }

    static Map<String, Horizon> of(String query) {
      return KNOWN.getOrDefault(query, Map.of());
    }

    boolean reaches(Kept record) {
      return record.time != time ? record.time < time : record.id <= id;
    }
  }

  enum Join { INNER, LEFT, NATURAL, ASOF }

  /** A view as the operator needs it: which tables meet in it, and how. */
  private static final class View {
    final int index, scope, left, right, bit;
    final Join join;
    final long lookbackMs; // -1: without bound

    View(JsonNode node) {
      index = node.get("index").asInt();
      scope = node.get("scope").asInt();
      left = node.get("left").asInt();
      right = node.get("right").asInt();
      join = Join.valueOf(node.get("join").asText().toUpperCase());
      lookbackMs = node.get("lookback_ms").asLong();
      bit = node.get("bit").asInt();
    }

    /** Whether an as-of match may be this old: not newer than the right record, nor older than the view looks back. */
    boolean reaches(Kept left, Kept right) {
      return left.time <= right.time && (lookbackMs < 0 || left.time >= right.time - lookbackMs);
    }
  }

  /** A record in the state of a key. */
  private static final class Kept {
    static final Kept CAUSE = new Kept(0, 0); // stands for the record that an event is of

    final long id, time;
    int matched; // of a left record: the views in which it has a match
    byte[] values;

    Kept(long id, long time) {
      this.id = id;
      this.time = time;
    }

    boolean isAfter(Kept other) {
      return time != other.time ? time > other.time : id > other.id;
    }

    byte[] packed() {
      return ByteBuffer.allocate(12 + values.length).putInt(matched).putLong(time).put(values).array();
    }

    static Kept unpacked(long id, byte[] packed) {
      ByteBuffer bytes = ByteBuffer.wrap(packed);
      int matched = bytes.getInt();
      Kept kept = new Kept(id, bytes.getLong());
      kept.matched = matched;
      kept.values = Arrays.copyOfRange(packed, 12, packed.length);
      return kept;
    }
  }

  /** The event that is being made, and the parts of it that are ready. */
  private static final class Event {
    final Deque<byte[]> parts = new ArrayDeque<>();
    private Bytes bytes = new Bytes();
    private int table, scope;
    private Kept cause;
    private long rowBytes; // of this part, once it is rows: each has the values of the cause again

    void begin(int table, int scope, Kept cause) {
      this.table = table;
      this.scope = scope;
      this.cause = cause;
      head();
    }

    private void head() {
      bytes.clear();
      bytes.put((byte) 0);
      bytes.putInt(table);
      bytes.putInt(scope);
      record(cause);
      rowBytes = 0;
    }

    void own() {
      bytes.put(OWN);
      count(cause);
    }

    void dead(byte[] value) {
      bytes.put(DEAD);
      bytes.putBytes(value);
    }

    void unknown(byte[] field) {
      bytes.put(UNKNOWN);
      bytes.putBytes(field);
    }

    void row(View view, Kept left, Kept right) {
      if (rowBytes > PART_BYTES) {
        parts.add(bytes.copy());
        head();
      }
      bytes.put(ROW);
      bytes.putInt(view.index);
      side(left);
      side(right);
    }

    void removed(View view, long leftId) {
      bytes.put(REMOVED);
      bytes.putInt(view.index);
      bytes.putLong(leftId);
    }

    void end() {
      bytes.set(0, (byte) 1);
      parts.add(bytes.copy());
    }

    private void side(Kept record) {
      if (record == null) {
        bytes.put(NONE);
      } else if (record == Kept.CAUSE) {
        bytes.put(CAUSE);
        count(cause);
      } else {
        bytes.put(OTHER);
        record(record);
        count(record);
      }
    }

    private void count(Kept side) {
      rowBytes += 2 * Long.BYTES + side.values.length; // its id and time with them
    }

    private void record(Kept record) {
      bytes.putLong(record.id);
      bytes.putLong(record.time);
      bytes.putBytes(record.values);
    }
  }

  /** The types that a column may have. */
  enum Type {
    STRING, INT64, DOUBLE, BOOL;

    static Type[] of(JsonNode columns) {
      Type[] types = new Type[columns.size()];
      for (int column = 0; column < types.length; column++) {
        types[column] = valueOf(columns.get(column).get("type").asText().toUpperCase());
      }
      return types;
    }
  }

  /**
   * Makes what the operator gets of a record of a table: the table, the scope, id, time, and a byte.
   *
   * <pre>
   * DEAD     the record could not be parsed: length (-1: null) and bytes of its value
   * PARSED   how many fields are not columns, length and bytes of the name of each, and the values of the columns:
   *          a byte for each, 0 if it is null, then 8 bytes, 1 byte, or length and bytes
   * </pre>
   *
   * <p>A record is a JSON object in UTF-8 and nothing after it. A value has the type of its column, converts to it without
   * loss, or is null; docs/CONFIGURATION.md has the rules in words. In a strict table nothing is converted. Of a field that
   * comes twice the last value counts, as in most readers of JSON. formats/json.py gives the reasons for what is refused
   * here, and agrees with it value by value.
   */
  private static final class Parser implements Serializable {
    static final byte PARSED = 0, DEAD = 1;
    private static final int NESTING_MAX = 500; // less than Python takes, which finds the reasons
    private static final JsonFactory STRICT = JsonFactory.builder()
        .disable(JsonFactory.Feature.INTERN_FIELD_NAMES)
        .streamReadConstraints(StreamReadConstraints.builder()
            .maxNestingDepth(NESTING_MAX)
            .maxNumberLength(Integer.MAX_VALUE)
            .maxNameLength(Integer.MAX_VALUE)
            .maxStringLength(Integer.MAX_VALUE)
            .build())
        .build();
    private static final Pattern NUMBER =
        Pattern.compile("-?+(?:0|[1-9][0-9]*+)(?:\\.[0-9]++)?+(?:[eE][+-]?+[0-9]++)?+");
    private static final int LONG_DIGITS = 19;
    private static final int EXPONENT_DIGITS_MAX = 9; // with more, no number but 0 is near the range of any type
    private static final byte ABSENT = 0, PRESENT = 1, WRONG = 2;

    private final String planJson;
    private final int table;
    private transient Map<String, Integer> columns; // places by name; null until the first record
    private transient Type[] types;
    private transient boolean isStrict;
    private transient int[] scopes;
    private transient byte[] states; // of the value of each column
    private transient long[] numbers;
    private transient byte[][] texts;
    private transient Set<String> unknown;
    private transient Bytes bytes;

    Parser(String planJson, int table) {
      this.planJson = planJson;
      this.table = table;
    }

    /** For a table with one scope. */
    byte[] record(Long id, Long time, byte[] value) {
      if (columns == null) {
        open();
      }
      boolean isRow = isRow(value);
      bytes.clear();
      bytes.putInt(table);
      bytes.putInt(scopes[0]);
      bytes.putLong(id);
      bytes.putLong(time);
      if (isRow) {
        bytes.put(PARSED);
        putRow();
      } else {
        bytes.put(DEAD);
        bytes.putBytes(value);
      }
      return bytes.copy();
    }

    /** For a table with several scopes: one for each, and one alone for what could not be parsed. */
    byte[][] records(Long id, Long time, byte[] value) {
      byte[] first = record(id, time, value);
      boolean isDead = first[2 * Integer.BYTES + 2 * Long.BYTES] == DEAD;
      byte[][] all = new byte[isDead ? 1 : scopes.length][];
      for (int place = 0; place < all.length; place++) {
        all[place] = place == 0 ? first : first.clone();
        ByteBuffer.wrap(all[place]).putInt(Integer.BYTES, scopes[place]);
      }
      return all;
    }

    private void open() {
      JsonNode plan = parsed(planJson);
      JsonNode nodes = plan.get("tables").get(table).get("columns");
      types = Type.of(nodes);
      isStrict = plan.get("tables").get(table).get("strict").asBoolean();
      scopes = scopes(plan, table);
      states = new byte[types.length];
      numbers = new long[types.length];
      texts = new byte[types.length][];
      unknown = new LinkedHashSet<>();
      bytes = new Bytes();
      columns = new HashMap<>();
      for (int column = 0; column < types.length; column++) {
        columns.put(nodes.get(column).get("name").asText(), column);
      }
    }

    private boolean isRow(byte[] value) {
      if (value == null || !beginsLikeAnObject(value)) {
        return false;
      }
      Arrays.fill(states, ABSENT);
      unknown.clear();
      // From text: the parser would guess the encoding of bytes, and refuse names with halves of surrogate pairs.
      try (JsonParser json = STRICT.createParser(text(value))) {
        json.nextToken(); // the brace
        for (String name = json.nextFieldName(); name != null; name = json.nextFieldName()) {
          Integer column = columns.get(name);
          JsonToken token = json.nextToken();
          if (column == null) {
            unknown.add(name);
            json.skipChildren();
          } else {
            states[column] = token == JsonToken.VALUE_NULL ? ABSENT : take(column, token, json) ? PRESENT : WRONG;
          }
        }
        if (json.nextToken() != null) {
          return false; // text after the object
        }
      } catch (IOException | RuntimeException malformed) {
        return false;
      }
      for (byte state : states) {
        if (state == WRONG) {
          return false;
        }
      }
      return true;
    }

    /** Take a value that is not null for a column; whether it may be one. */
    private boolean take(int column, JsonToken token, JsonParser json) throws IOException {
      if (token == JsonToken.START_OBJECT || token == JsonToken.START_ARRAY) {
        json.skipChildren();
        return false;
      }
      return switch (types[column]) {
        case STRING -> takeText(column, token, json);
        case INT64 -> takeWhole(column, token, json);
        case DOUBLE -> takeDouble(column, token, json);
        case BOOL -> takeBool(column, token, json);
      };
    }

    /** Numbers, true and false become text as they are written. */
    private boolean takeText(int column, JsonToken token, JsonParser json) throws IOException {
      if (token != JsonToken.VALUE_STRING && isStrict) {
        return false;
      }
      texts[column] = json.getText().getBytes(StandardCharsets.UTF_8);
      return true;
    }

    private boolean takeWhole(int column, JsonToken token, JsonParser json) throws IOException {
      if (token == JsonToken.VALUE_NUMBER_INT && json.getTextLength() < LONG_DIGITS) {
        numbers[column] = json.getLongValue();
        return true;
      }
      boolean isNumber = token == JsonToken.VALUE_NUMBER_INT
          || !isStrict && (token == JsonToken.VALUE_NUMBER_FLOAT || isNumberInText(token, json));
      Long whole = isNumber ? whole(json.getText()) : null;
      if (whole == null) {
        return false;
      }
      numbers[column] = whole;
      return true;
    }

    private boolean takeDouble(int column, JsonToken token, JsonParser json) throws IOException {
      double number;
      if (token == JsonToken.VALUE_NUMBER_INT || token == JsonToken.VALUE_NUMBER_FLOAT) {
        number = json.getDoubleValue();
      } else if (!isStrict && isNumberInText(token, json)) {
        number = Double.parseDouble(json.getText());
      } else {
        return false;
      }
      numbers[column] = Double.doubleToRawLongBits(number);
      return !Double.isInfinite(number);
    }

    private boolean takeBool(int column, JsonToken token, JsonParser json) throws IOException {
      boolean isText = !isStrict && token == JsonToken.VALUE_STRING;
      boolean isTrue = token == JsonToken.VALUE_TRUE || isText && json.getText().equals("true");
      numbers[column] = isTrue ? 1 : 0;
      return isTrue || token == JsonToken.VALUE_FALSE || isText && json.getText().equals("false");
    }

    /** Whether it is text that would be a number of JSON without its quotes. */
    private static boolean isNumberInText(JsonToken token, JsonParser json) throws IOException {
      return token == JsonToken.VALUE_STRING && NUMBER.matcher(json.getText()).matches();
    }

    /** The whole number that a number of JSON is, however it is written; null if it has a fraction, or is no int64. */
    private static Long whole(String number) {
      int exponentAt = Math.max(number.indexOf('e'), number.indexOf('E'));
      String mantissa = exponentAt < 0 ? number : number.substring(0, exponentAt);
      boolean isNegative = mantissa.charAt(0) == '-';
      int point = mantissa.indexOf('.');
      String digits = mantissa.substring(isNegative ? 1 : 0).replace(".", "");
      int first = 0;
      int end = digits.length();
      while (first < end && digits.charAt(first) == '0') {
        first++;
      }
      while (first < end && digits.charAt(end - 1) == '0') {
        end--;
      }
      if (first == end) {
        return 0L;
      }
      long exponent = exponentAt < 0 ? 0 : exponent(number.substring(exponentAt + 1));
      long zeros = exponent - (point < 0 ? 0 : mantissa.length() - point - 1) + digits.length() - end;
      if (zeros < 0 || zeros + end - first > LONG_DIGITS) {
        return null;
      }
      String plain = digits.substring(first, end) + "0".repeat((int) zeros);
      try {
        return Long.parseLong(isNegative ? "-" + plain : plain);
      } catch (NumberFormatException beyond) {
        return null;
      }
    }

    private static long exponent(String text) {
      boolean isNegative = text.charAt(0) == '-';
      int first = isNegative || text.charAt(0) == '+' ? 1 : 0;
      while (first < text.length() - 1 && text.charAt(first) == '0') {
        first++;
      }
      boolean isFar = text.length() - first > EXPONENT_DIGITS_MAX;
      long exponent = isFar ? Integer.MAX_VALUE : Long.parseLong(text.substring(first));
      return isNegative ? -exponent : exponent;
    }

    private void putRow() {
      bytes.putInt(unknown.size());
      for (String field : unknown) {
        bytes.putBytes(field.getBytes(StandardCharsets.UTF_8));
      }
      for (int column = 0; column < types.length; column++) {
        bytes.put(states[column]);
        if (states[column] == PRESENT) {
          switch (types[column]) {
            case STRING -> bytes.putBytes(texts[column]);
            case BOOL -> bytes.put((byte) numbers[column]);
            case INT64, DOUBLE -> bytes.putLong(numbers[column]);
          }
        }
      }
    }

    private static boolean beginsLikeAnObject(byte[] value) {
      for (byte each : value) {
        if (each != ' ' && each != '\t' && each != '\n' && each != '\r') {
          return each == '{';
        }
      }
      return false;
    }

    private static String text(byte[] value) throws CharacterCodingException {
      for (byte each : value) {
        if (each < 0) {
          return StandardCharsets.UTF_8.newDecoder().decode(ByteBuffer.wrap(value)).toString();
        }
      }
      return new String(value, StandardCharsets.ISO_8859_1); // ASCII, and quicker
    }
  }

  /** Finds what records meet by: the scope and the value there. Where nothing may match, it is any of a few others. */
  private static final class Keys implements Serializable {
    private final String planJson;
    private transient Type[][] types; // by table; null until the first record
    private transient int[][] columns; // by table and scope: where the key is, -1: nowhere

    Keys(String planJson) {
      this.planJson = planJson;
    }

    String key(byte[] record) {
      if (types == null) {
        open();
      }
      ByteBuffer buffer = ByteBuffer.wrap(record);
      int table = buffer.getInt();
      int scope = buffer.getInt();
      long id = buffer.getLong();
      buffer.getLong();
      boolean isDead = buffer.get() == Parser.DEAD;
      String value = isDead || columns[table][scope] < 0 ? null : value(buffer, types[table], columns[table][scope]);
      return value == null ? NO_KEY + String.valueOf(Math.floorMod(id, SPREAD)) : scope + ":" + value;
    }

    private static String value(ByteBuffer buffer, Type[] types, int column) {
      for (int names = buffer.getInt(); names > 0; names--) {
        int length = buffer.getInt();
        buffer.position(buffer.position() + length);
      }
      for (int each = 0; ; each++) {
        boolean isThere = buffer.get() == 1;
        if (each == column && !isThere) {
          return null;
        }
        if (isThere) {
          int length = switch (types[each]) {
            case STRING -> buffer.getInt();
            case BOOL -> 1;
            case INT64, DOUBLE -> Long.BYTES;
          };
          if (each == column) {
            return switch (types[each]) {
              case STRING -> new String(buffer.array(), buffer.position(), length, StandardCharsets.UTF_8);
              case BOOL -> String.valueOf(buffer.get() == 1);
              case INT64 -> String.valueOf(buffer.getLong());
              case DOUBLE -> String.valueOf(buffer.getDouble() + 0.0); // -0.0 is equal to 0.0, and has another text
            };
          }
          buffer.position(buffer.position() + length);
        }
      }
    }

    private void open() {
      JsonNode plan = parsed(planJson);
      JsonNode tables = plan.get("tables");
      columns = new int[tables.size()][Math.max(1, plan.get("scopes").size())];
      types = new Type[tables.size()][];
      for (int table = 0; table < types.length; table++) {
        JsonNode nodes = tables.get(table).get("columns");
        types[table] = Type.of(nodes);
        Arrays.fill(columns[table], -1);
        for (JsonNode scope : tables.get(table).get("scopes")) {
          for (int column = 0; column < types[table].length; column++) {
            if (nodes.get(column).get("name").equals(plan.get("scopes").get(scope.asInt()))) {
              columns[table][scope.asInt()] = column;
            }
          }
        }
      }
    }
  }

  /** A byte array that grows. */
  private static final class Bytes {
    private ByteBuffer buffer = ByteBuffer.allocate(1024);

    void clear() {
      buffer.clear();
    }

    int length() {
      return buffer.position();
    }

    byte[] copy() {
      return Arrays.copyOf(buffer.array(), buffer.position());
    }

    void set(int position, byte value) {
      buffer.put(position, value);
    }

    void put(byte value) {
      room(1).put(value);
    }

    void putInt(int value) {
      room(Integer.BYTES).putInt(value);
    }

    void putLong(long value) {
      room(Long.BYTES).putLong(value);
    }

    void putBytes(byte[] value) {
      putInt(value == null ? -1 : value.length);
      if (value != null) {
        room(value.length).put(value);
      }
    }

    private ByteBuffer room(int bytes) {
      if (buffer.remaining() < bytes) {
        int capacity = Math.max(buffer.capacity() * 2, buffer.position() + bytes);
        buffer = ByteBuffer.allocate(capacity).put(buffer.array(), 0, buffer.position());
      }
      return buffer;
    }
  }

  /**
   * The time at the start of the JVM and what has passed since, whatever becomes of the machine's clock. By Spark's own
   * clock in real time, a batch that begins while the machine's is ahead ends when that time has really come.
   */
  public static final class SteadyClock implements Clock {
    private final long startMs = System.currentTimeMillis(), startNanos = System.nanoTime();

    @Override
    public long getTimeMillis() {
      return startMs + (System.nanoTime() - startNanos) / 1_000_000;
    }

    @Override
    public long nanoTime() {
      return System.nanoTime();
    }

    @Override
    public long waitTillTime(long targetMs) {
      for (long left; (left = targetMs - getTimeMillis()) > 0;) {
        LockSupport.parkNanos(left * 1_000_000);
      }
      return getTimeMillis();
    }
  }

  /**
   * Spark's Kafka source, for any timestamp. Spark counts microseconds, so that a timestamp beyond 292,000 years ends its
   * query. It refuses interceptors, which could see the records before, as an option; so this one is added to what
   * Spark has made of the options, and everything else is left as it is.
   */
  public static final class Source implements TableProvider {
    private final TableProvider kafka;

    public Source() throws ReflectiveOperationException {
      Class<?> provider = Class.forName(
          "org.apache.spark.sql.kafka010.KafkaSourceProvider", true, Thread.currentThread().getContextClassLoader());
      kafka = (TableProvider) provider.getDeclaredConstructor().newInstance();
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
      return kafka.inferSchema(options);
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
      Table table = kafka.getTable(schema, partitioning, properties);
      return new Topics(table);
    }
  }

  private static final class Topics implements SupportsRead {
    private final Table table;

    Topics(Table table) {
      this.table = table;
    }

    @Override
    public String name() {
      return table.name();
    }

    @Override
    public org.apache.spark.sql.connector.catalog.Column[] columns() {
      return table.columns();
    }

    @Override
    public Set<TableCapability> capabilities() {
      return EnumSet.of(TableCapability.MICRO_BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
      Scan scan = ((SupportsRead) table).newScanBuilder(bounded(options)).build();
      return () -> new Topic(scan);
    }

    /** Spark's source bounds a batch by records alone: here are as many as the bytes of a batch are enough for. */
    private static CaseInsensitiveStringMap bounded(CaseInsensitiveStringMap options) {
      if (!options.containsKey(RECORDS_MAX) || !options.containsKey(BYTES_MAX)) {
        return options;
      }
      long bytes = Math.max(1, new Sizes(options).largest());
      long records = Math.max(1, options.getLong(BYTES_MAX, 0) / bytes);
      Map<String, String> fewer = new HashMap<>(options.asCaseSensitiveMap());
      fewer.keySet().removeIf(RECORDS_MAX::equalsIgnoreCase);
      fewer.put(RECORDS_MAX, String.valueOf(Math.min(records, options.getLong(RECORDS_MAX, 0))));
      return new CaseInsensitiveStringMap(fewer);
    }
  }

  /**
   * How large the records of a topic are, by a few of them at some places of it. A topic that cannot be read now is left
   * to Spark, which reports it.
   */
  private static final class Sizes {
    private static final int PLACES = 16, RECORDS = 20;
    private static final Duration PATIENCE = Duration.ofSeconds(5);

    private final String topic;
    private final Map<String, Object> properties = new HashMap<>();

    Sizes(CaseInsensitiveStringMap options) {
      topic = options.get("subscribe");
      options.asCaseSensitiveMap().forEach((name, value) -> {
        if (name.toLowerCase(Locale.ROOT).startsWith("kafka.")) {
          properties.put(name.substring("kafka.".length()), value);
        }
      });
      properties.put("enable.auto.commit", "false");
      properties.put("max.poll.records", String.valueOf(RECORDS));
      properties.put("max.partition.fetch.bytes", String.valueOf(64 * 1024)); // or one record, if it is larger
      properties.put("default.api.timeout.ms", String.valueOf(PATIENCE.toMillis()));
    }

    /** The mean size of a record at the place where it is the largest; 0 if there are no records. */
    long largest() {
      ByteArrayDeserializer bytes = new ByteArrayDeserializer();
      try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(properties, bytes, bytes)) {
        List<TopicPartition> partitions = new ArrayList<>();
        consumer.partitionsFor(topic).forEach(each -> partitions.add(new TopicPartition(topic, each.partition())));
        Map<TopicPartition, Long> first = consumer.beginningOffsets(partitions);
        Map<TopicPartition, Long> end = consumer.endOffsets(partitions);
        partitions.removeIf(each -> end.get(each) <= first.get(each));
        long giveUp = System.nanoTime() + PATIENCE.toNanos();
        long largest = 0;
        for (int place = 0; place < PLACES && !partitions.isEmpty() && System.nanoTime() < giveUp; place++) {
          TopicPartition partition = partitions.get(place % partitions.size());
          long there = end.get(partition) - first.get(partition);
          consumer.assign(List.of(partition));
          consumer.seek(partition, first.get(partition) + Math.min(there - 1, there * place / PLACES));
          largest = Math.max(largest, mean(consumer.poll(Duration.ofSeconds(1))));
        }
        return largest;
      } catch (KafkaException unreadable) {
        return 0;
      }
    }

    private static long mean(ConsumerRecords<byte[], byte[]> records) {
      long bytes = 0;
      for (ConsumerRecord<byte[], byte[]> record : records) {
        bytes += Math.max(0, record.serializedKeySize()) + Math.max(0, record.serializedValueSize());
      }
      return records.isEmpty() ? 0 : bytes / records.count();
    }
  }

  private static final class Topic implements Scan {
    private final Scan scan;

    Topic(Scan scan) {
      this.scan = scan;
    }

    @Override
    public StructType readSchema() {
      return scan.readSchema();
    }

    @Override
    public String description() {
      return scan.description();
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
      return scan.supportedCustomMetrics();
    }

    @Override
    @SuppressWarnings("unchecked")
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
      MicroBatchStream stream = scan.toMicroBatchStream(checkpoint);
      try {
        Field given = stream.getClass().getDeclaredField("executorKafkaParams");
        given.setAccessible(true);
        ((Map<String, Object>) given.get(stream)).put("interceptor.classes", Times.class.getName());
      } catch (ReflectiveOperationException error) {
        throw new IllegalStateException("this version of Spark's Kafka source is not known", error);
      }
      return stream;
    }
  }

  /** Gives a record whose timestamp Spark cannot count the nearest one that it can. */
  public static final class Times implements ConsumerInterceptor<byte[], byte[]> {
    private static final long MS_MAX = Long.MAX_VALUE / 1000;

    @Override
    public ConsumerRecords<byte[], byte[]> onConsume(ConsumerRecords<byte[], byte[]> records) {
      for (ConsumerRecord<byte[], byte[]> record : records) {
        if (bounded(record.timestamp()) != record.timestamp()) {
          return bounded(records);
        }
      }
      return records;
    }

    private static ConsumerRecords<byte[], byte[]> bounded(ConsumerRecords<byte[], byte[]> records) {
      Map<TopicPartition, List<ConsumerRecord<byte[], byte[]>>> bounded = new HashMap<>();
      for (TopicPartition partition : records.partitions()) {
        List<ConsumerRecord<byte[], byte[]>> of = new ArrayList<>();
        for (ConsumerRecord<byte[], byte[]> each : records.records(partition)) {
          of.add(new ConsumerRecord<>(each.topic(), each.partition(), each.offset(), bounded(each.timestamp()),
              each.timestampType(), each.serializedKeySize(), each.serializedValueSize(), each.key(), each.value(),
              each.headers(), each.leaderEpoch()));
        }
        bounded.put(partition, of);
      }
      return new ConsumerRecords<>(bounded);
    }

    private static long bounded(long time) {
      return Math.max(-MS_MAX, Math.min(MS_MAX, time));
    }

    @Override
    public void onCommit(Map<TopicPartition, OffsetAndMetadata> offsets) {}

    @Override
    public void configure(Map<String, ?> settings) {}

    @Override
    public void close() {}
  }
}
