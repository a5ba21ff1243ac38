export { ADAPTER_ROWS, LiveTableAdapter, REACQUIRE_MS } from "./adapter.js";
export type { AdapterOptions, Resolver, RowsCallback } from "./adapter.js";
export { LiveTablesClient } from "./client.js";
export type { ClientOptions, SubscribeOptions, Unsubscribe } from "./client.js";
export type { ClockDifference } from "./clock.js";
export { columnKind } from "./columns.js";
export type { ColumnKind, ColumnType } from "./columns.js";
export { LivetablesError } from "./errors.js";
export type { Problem } from "./errors.js";
export { TableHandle } from "./handle.js";
export type { Handle } from "./handle.js";
export { mayAppear } from "./health.js";
export type { Health } from "./health.js";
export { UnansweredError } from "./http.js";
export type { ControlReceipt, SqlAnswer } from "./http.js";
export { TableHub } from "./hub.js";
export type { Comparisons, Subscription, ViewListener, Wire } from "./hub.js";
export { PHASES } from "./latency.js";
export type { Latency, LatencyPhase, Percentiles } from "./latency.js";
export type {
  Column,
  Filter,
  FreshnessState,
  Limits,
  Role,
  Sort,
  SourceStatus,
  Status,
  Value,
  ViewOptions,
} from "./protocol.js";
export type { RebindingStream, RowsListener } from "./stream.js";
export type { Observer, Stream, Unsubscribable } from "./observable.js";
export type { Socket, SocketConstructor, SocketEvent, Surroundings, WakeListener } from "./surroundings.js";
export { tableNameProblem } from "./table-name.js";
export { PAGE_ROWS } from "./view.js";
export type { ViewState } from "./view-state.js";
export type { Row, Window } from "./window.js";
