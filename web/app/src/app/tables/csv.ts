import type { LiveTableService, LiveTableView } from "@livetables/angular";

/** Have the browser save the rows of a view as a file. */
export async function saveCsv(service: LiveTableService, table: string, view: LiveTableView): Promise<void> {
  const { columns, sort = [], filters = [], quick = "" } = view;
  const question = new URLSearchParams({
    columns: (columns ?? []).join(","),
    sort: sort.map(({ column, descending }) => `${column}:${descending ? "desc" : "asc"}`).join(","),
    filter: JSON.stringify(filters),
    q: quick,
  });
  const path = `api/tables/${table}/rows?${question.toString()}`;
  const answer = await service.request(path, { headers: { Accept: "text/csv" } });
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await answer.blob());
  link.download = `${table}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
}
