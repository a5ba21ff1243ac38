export * from "@livetables/client";
export { LIVE_TABLES, LiveTableService, provideLiveTables } from "./live-table.service";
export { LiveStateComponent } from "./live-state.component";
export { LiveTableComponent } from "./live-table.component";
export type { LiveTableView } from "./live-table.component";
