import type { ViewOptions } from "@livetables/angular";

/** Columns and number of a table's rows, and none of them. All parts of the page share it, and it changes all the time. */
export const COUNT: ViewOptions = { size: 0, interval_ms: 100 };
