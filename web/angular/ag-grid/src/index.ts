export { columnDefinitions } from "./columns";
export { LivetablesDatasource, livetablesDatasource } from "./datasource";
export type { DatasourceOptions } from "./datasource";
export { filtersOf, sortOf } from "./view";
