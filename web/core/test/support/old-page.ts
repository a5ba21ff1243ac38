/**
 * A page as it was written for the service before: three components with the service's method names, and rows typed as
 * the page knows them. Only the import was changed.
 */
import type { LiveTablesClient as TableService } from "../../src/index.js";
import type { LiveTableAdapter, TableHandle } from "../../src/index.js";

interface User {
  userId: string;
  name: string;
  email: string;
  age: number;
}

interface Account {
  userId: string;
  accountType: string;
  balance: number;
}

interface UserAccount extends User, Account {}

/** Pages through `user`, with the columns that the handle has. */
export class UserComponent {
  columns: string[] = [];
  rows: User[] = [];
  offset = 0;
  private unsubscribe?: () => void;
  private readonly tables: TableService;

  constructor(tables: TableService) {
    this.tables = tables;
  }

  async ngOnInit(): Promise<void> {
    if (!this.tables.isReady) await this.tables.connect();
    const handle = await this.tables.getTableHandle("user");
    this.columns = handle.columns.map((column) => column.name);
    this.show(0);
  }

  show(offset: number): void {
    this.unsubscribe?.();
    this.offset = offset;
    this.unsubscribe = this.tables.subscribe("user", (rows: User[]) => (this.rows = rows), { offset, size: 2 });
  }

  ngOnDestroy(): void {
    this.unsubscribe?.();
  }
}

/** Binds `account` by an adapter, twice, as its inputs come twice. */
export class AccountComponent {
  rows: Account[] = [];
  handle?: TableHandle;
  private adapter?: LiveTableAdapter;
  private readonly tables: TableService;

  constructor(tables: TableService) {
    this.tables = tables;
  }

  async ngOnInit(): Promise<void> {
    await this.tables.connect();
    this.handle = await this.tables.getTableHandle("account");
    this.adapter = this.tables.createLiveAdapter();
    await this.ngOnChanges();
    await this.ngOnChanges();
  }

  async ngOnChanges(): Promise<void> {
    if (!this.handle) return;
    const columns = ["userId", "accountType", "balance"];
    await this.adapter?.bind(this.handle, this.onRows, columns, () => this.tables.getTableHandle("account"));
  }

  ngOnDestroy(): void {
    this.adapter?.unbind();
  }

  private readonly onRows = (rows: Account[]): void => {
    this.rows = rows;
  };
}

/** Streams `user_account`. */
export class UserAccountComponent {
  rows: UserAccount[] = [];
  private subscription?: { unsubscribe(): void };
  private dispose?: () => void;
  private readonly tables: TableService;

  constructor(tables: TableService) {
    this.tables = tables;
  }

  ngOnInit(): void {
    const { rows$, dispose } = this.tables.streamTableWithRebind<UserAccount>("user_account", 1000);
    this.dispose = dispose;
    this.subscription = rows$.subscribe((rows) => (this.rows = rows));
  }

  ngOnDestroy(): void {
    this.subscription?.unsubscribe();
    this.dispose?.();
  }
}
