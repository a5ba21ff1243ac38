package livetables;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Deque;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.functions;
import org.apache.spark.sql.streaming.MapState;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StatefulProcessor;
import org.apache.spark.sql.streaming.TTLConfig;
import org.apache.spark.sql.streaming.TimeMode;
import org.apache.spark.sql.streaming.TimerValues;
import org.apache.spark.sql.streaming.ValueState;
import scala.Tuple2;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Keeps, per scope and key, the records that have come, and emits for each new one an event: the record itself and
 * everything that it changes in the views. An event is bytes, as {@link FrameWriter} reads them.
 *
 * <p>A scope is a column that views join on; a record comes once for each scope that its table has. Spark calls the
 * operator once per record in real time, and once per key and batch in micro-batches: each record is handled on its own,
 * so both give the same. State knows a record by its id, which is its Kafka partition and offset.
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
public final class MatchOperator extends StatefulProcessor<String, Row, byte[]> {
  static final byte OWN = 0, DEAD = 1, UNKNOWN = 2, ROW = 3, REMOVED = 4;
  static final byte NONE = 0, CAUSE = 1, OTHER = 2;

  /** A record with more matches than fit is emitted in parts, so that no message grows without bound. */
  private static final int PART_BYTES = 1 << 20;

  // The columns of the input, in order; the structs with the values of each table follow.
  private static final int TABLE = 1, SCOPE = 2, IS_OWN = 3, HAS_KEY = 4, ID = 5, TIME = 6, IS_DEAD = 7, RAW = 8;
  private static final int UNKNOWN_FIELDS = 9, VALUES = 10;

  private final String planJson;

  private transient View[][] asLeft; // by scope and table
  private transient View[][] asRight;
  private transient MapState<Long, byte[]>[] rows; // by table: matched bits, time and values of its records
  private transient ValueState<byte[]>[] latest; // by table: id, time and values of its latest record
  private transient List<Kept>[] cached; // by table, for the key at hand
  private transient ValueWriter values;
  private transient Event event;
  private int tables;

  public MatchOperator(String planJson) {
    this.planJson = planJson;
  }

  /** The events of parsed records, which have the columns above. */
  public static Dataset<byte[]> events(Dataset<Row> records, String planJson) {
    return records
        .groupBy(functions.col("key"))
        .as(Encoders.STRING(), Encoders.row(records.schema()))
        .transformWithState(new MatchOperator(planJson), TimeMode.None(), OutputMode.Update(), Encoders.BINARY());
  }

  @Override
  @SuppressWarnings("unchecked")
  public void init(OutputMode outputMode, TimeMode timeMode) {
    JsonNode plan = parsed(planJson);
    tables = plan.get("tables").size();
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
    values = new ValueWriter(plan.get("tables"));
    event = new Event();
  }

  @Override
  public scala.collection.Iterator<byte[]> handleInputRows(
      String key, scala.collection.Iterator<Row> records, TimerValues timers) {
    Arrays.fill(cached, null);
    return CollectionConverters.asScala(new Iterator<byte[]>() {
      @Override
      public boolean hasNext() {
        while (event.parts.isEmpty() && records.hasNext()) {
          handle(records.next());
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

  private void handle(Row record) {
    int table = record.getInt(TABLE);
    int scope = record.getInt(SCOPE);
    boolean isDead = record.getBoolean(IS_DEAD);
    Kept cause = new Kept(record.getLong(ID), record.getLong(TIME));
    cause.values = isDead ? new byte[0] : values.packed(table, record.getStruct(VALUES + table));
    event.begin(table, scope, cause);
    if (isDead) {
      event.dead(record.isNullAt(RAW) ? null : (byte[]) record.get(RAW));
    } else {
      if (record.getBoolean(IS_OWN)) {
        event.own();
        if (!record.isNullAt(UNKNOWN_FIELDS)) {
          for (Object field : record.getList(UNKNOWN_FIELDS)) {
            event.unknown((String) field);
          }
        }
      }
      int place = scope * tables + table;
      if (record.getBoolean(HAS_KEY)) {
        match(table, asLeft[place], asRight[place], cause);
      } else {
        withoutKey(asLeft[place], asRight[place]);
      }
    }
    event.end();
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
      scala.collection.Iterator<Tuple2<Long, byte[]>> state = rows[table].iterator();
      while (state.hasNext()) {
        Tuple2<Long, byte[]> entry = state.next();
        found.add(Kept.unpacked(entry._1(), entry._2()));
      }
      cached[table] = found;
    }
    return cached[table];
  }

  private Kept latest(int table) {
    byte[] packed = latest[table].get();
    if (packed == null) {
      return null;
    }
    ByteBuffer bytes = ByteBuffer.wrap(packed);
    long id = bytes.getLong();
    return Kept.unpacked(id, Arrays.copyOfRange(packed, Long.BYTES, packed.length));
  }

  private void keep(int table, Kept record) {
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
      }
    }
  }

  static JsonNode parsed(String json) {
    try {
      return new ObjectMapper().readTree(json);
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }

  private static View[] with(View[] views, View view) {
    View[] more = Arrays.copyOf(views, views.length + 1);
    more[views.length] = view;
    return more;
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
    }

    void own() {
      bytes.put(OWN);
    }

    void dead(byte[] value) {
      bytes.put(DEAD);
      bytes.putBytes(value);
    }

    void unknown(String field) {
      bytes.put(UNKNOWN);
      bytes.putBytes(field.getBytes(StandardCharsets.UTF_8));
    }

    void row(View view, Kept left, Kept right) {
      bytes.put(ROW);
      bytes.putInt(view.index);
      side(left);
      side(right);
      if (bytes.length() > PART_BYTES) {
        parts.add(bytes.copy());
        head();
      }
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
      } else {
        bytes.put(OTHER);
        record(record);
      }
    }

    private void record(Kept record) {
      bytes.putLong(record.id);
      bytes.putLong(record.time);
      bytes.putBytes(record.values);
    }
  }

  /** Packs the values of a row: a byte for each, 0 if it is null, then 8 bytes, 1 byte, or length and bytes. */
  private static final class ValueWriter {
    private final String[][] types;
    private final Bytes bytes = new Bytes();

    ValueWriter(JsonNode tables) {
      types = new String[tables.size()][];
      for (int table = 0; table < types.length; table++) {
        JsonNode columns = tables.get(table).get("columns");
        types[table] = new String[columns.size()];
        for (int column = 0; column < columns.size(); column++) {
          types[table][column] = columns.get(column).get("type").asText();
        }
      }
    }

    byte[] packed(int table, Row row) {
      bytes.clear();
      String[] columns = types[table];
      for (int column = 0; column < columns.length; column++) {
        if (row.isNullAt(column)) {
          bytes.put((byte) 0);
          continue;
        }
        bytes.put((byte) 1);
        switch (columns[column]) {
          case "string" -> bytes.putBytes((byte[]) row.get(column));
          case "int64" -> bytes.putLong(row.getLong(column));
          case "double" -> bytes.putLong(Double.doubleToRawLongBits(row.getDouble(column)));
          case "bool" -> bytes.put((byte) (row.getBoolean(column) ? 1 : 0));
          default -> throw new IllegalStateException("a column of type " + columns[column]);
        }
      }
      return bytes.copy();
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
}
