//! The engines: each opens a folder, makes groups of leases durable, and reads all of them back.

use anyhow::Context as _;
use fjall::{PartitionCreateOptions, PersistMode};
use meshd_model::fleet::Lease;
use meshd_store::{Store, StoreError};
use meshd_types::{MacAddr, Timestamp};
use redb::{ReadableTable as _, TableDefinition};
use std::{collections::BTreeMap, path::Path, sync::Arc};
use tokio::runtime::Runtime;

/// Where redb and fjall keep the leases.
const LEASES: &str = "leases";
const TABLE: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new(LEASES);

/// Leases by their machines.
pub type Leases = BTreeMap<Vec<u8>, Vec<u8>>;

/// A store of leases.
pub trait Engine {
    /// Makes these durable together: they are on the disk when it returns.
    fn commit(&mut self, leases: &[Lease]) -> anyhow::Result<()>;
    /// Reads all of them.
    fn read(&self) -> anyhow::Result<Leases>;
}

#[derive(Clone, Copy)]
pub struct Kind {
    pub name: &'static str,
    pub open: fn(&Path) -> anyhow::Result<Box<dyn Engine>>,
}

/// Ours first.
pub const ALL: [Kind; 4] = [
    Kind { name: "meshd", open: |folder| Ok(Box::new(Ours::open(folder)?)) },
    Kind { name: "sled", open: |folder| Ok(Box::new(Sled(sled::open(folder)?))) },
    Kind {
        name: "redb",
        open: |folder| Ok(Box::new(Redb(redb::Database::create(folder.join("file"))?))),
    },
    Kind { name: "fjall", open: |folder| Ok(Box::new(Fjall::open(folder)?)) },
];

/// The lease of a machine.
pub fn lease(machine: u32, number: u32) -> Lease {
    let [a, b, c, d] = machine.to_be_bytes();
    Lease {
        mac: MacAddr([2, 0, a, b, c, d]),
        address: [10, b, c, d].into(),
        expires_at: Timestamp::from_millis(i64::from(number)),
        vm: None,
    }
}

/// The record that every engine has of a lease.
pub fn record(lease: &Lease) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
    Ok((lease.mac.to_string().into_bytes(), serde_json::to_vec(lease)?))
}

/// One task for each lease: they share a flush.
struct Ours {
    runtime: Runtime,
    store: Arc<Store>,
}

impl Ours {
    fn open(folder: &Path) -> anyhow::Result<Self> {
        Ok(Ours { runtime: Runtime::new()?, store: Arc::new(Store::open(folder)?) })
    }
}

impl Engine for Ours {
    fn commit(&mut self, leases: &[Lease]) -> anyhow::Result<()> {
        let put = |lease: Lease| {
            let store = Arc::clone(&self.store);
            async move {
                let put = store.commit(|tx| {
                    tx.put_lease(lease);
                    Ok::<_, StoreError>(())
                });
                put.await.map(drop)
            }
        };
        self.runtime.block_on(async {
            let writers: Vec<_> =
                leases.iter().map(|lease| tokio::spawn(put(lease.clone()))).collect();
            for writer in writers {
                writer.await??;
            }
            Ok(())
        })
    }

    fn read(&self) -> anyhow::Result<Leases> {
        self.store.read(|model| model.leases().map(record).collect())
    }
}

/// `flush` is what meshd called before it acknowledged a change. It is no `fdatasync`: ADR 15.
struct Sled(sled::Db);

impl Engine for Sled {
    fn commit(&mut self, leases: &[Lease]) -> anyhow::Result<()> {
        let mut batch = sled::Batch::default();
        for (key, value) in leases.iter().map(record).collect::<anyhow::Result<Leases>>()? {
            batch.insert(key, value);
        }
        self.0.apply_batch(batch)?;
        self.0.flush().map(drop).context("flush")
    }

    fn read(&self) -> anyhow::Result<Leases> {
        self.0
            .iter()
            .map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).context("read"))
            .collect()
    }
}

struct Redb(redb::Database);

impl Engine for Redb {
    fn commit(&mut self, leases: &[Lease]) -> anyhow::Result<()> {
        let change = self.0.begin_write()?;
        {
            let mut table = change.open_table(TABLE)?;
            for (key, value) in leases.iter().map(record).collect::<anyhow::Result<Leases>>()? {
                table.insert(key.as_slice(), value.as_slice())?;
            }
        }
        change.commit().context("commit")
    }

    fn read(&self) -> anyhow::Result<Leases> {
        let table = self.0.begin_read()?.open_table(TABLE)?;
        let pairs = table.iter()?.map(|pair| {
            let (key, value) = pair?;
            Ok((key.value().to_vec(), value.value().to_vec()))
        });
        pairs.collect()
    }
}

struct Fjall {
    keyspace: fjall::Keyspace,
    leases: fjall::PartitionHandle,
}

impl Fjall {
    fn open(folder: &Path) -> anyhow::Result<Self> {
        let keyspace = fjall::Config::new(folder).open()?;
        let leases = keyspace.open_partition(LEASES, PartitionCreateOptions::default())?;
        Ok(Fjall { keyspace, leases })
    }
}

impl Engine for Fjall {
    fn commit(&mut self, leases: &[Lease]) -> anyhow::Result<()> {
        let mut batch = self.keyspace.batch();
        for (key, value) in leases.iter().map(record).collect::<anyhow::Result<Leases>>()? {
            batch.insert(&self.leases, key, value);
        }
        batch.commit()?;
        self.keyspace.persist(PersistMode::SyncData).context("persist")
    }

    fn read(&self) -> anyhow::Result<Leases> {
        self.leases
            .iter()
            .map(|pair| pair.map(|(key, value)| (key.to_vec(), value.to_vec())).context("read"))
            .collect()
    }
}
