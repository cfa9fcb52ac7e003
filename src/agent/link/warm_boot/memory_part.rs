//! Fetches parts of a boot into files in memory, each verified by its digest.

use crate::link::call::{self, Endpoint, Piece};
use meshd_proto::{
    VERSION, WARM_OVERLAY_PATH, WARM_PARTS_PATH,
    warm_boot::{WarmBootPart, WarmBootStep},
};
use meshd_types::{BootSessionId, Digest};
use sha2::{Digest as _, Sha256};
use std::{fs::File, io::Write as _, time::Duration};
use tokio::time::sleep;

/// Bytes of one request. Each request has its own authorisation and timeout.
const PIECE: u64 = 16 << 20;
/// Requests for one piece before the node boots through its firmware.
const TRIES: u32 = 4;
const RETRY: Duration = Duration::from_secs(2);
/// Maximum size of an overlay with the programs of a node, in bytes.
const MAX_OVERLAY: usize = 512 << 20;

/// Appends a kernel or an initrd.
pub(super) async fn append_part(
    endpoint: &Endpoint,
    part: &WarmBootPart,
    file: &mut File,
) -> Result<(), String> {
    let name = &part.name;
    let cannot = |why: &dyn std::fmt::Display| format!("cannot fetch {name}: {why}");
    let path = format!("{WARM_PARTS_PATH}/{}", part.digest);
    let mut hash = Sha256::new();
    let mut fetched = 0;
    while fetched < part.size {
        let range = (fetched, part.size.min(fetched + PIECE));
        let bytes = fetch_piece(endpoint, &path, range).await.map_err(|why| cannot(&why))?;
        // A server that sends nothing must not keep the node here.
        if bytes.is_empty() {
            return Err(cannot(&"the file is shorter than the plan says"));
        }
        hash.update(&bytes);
        file.write_all(&bytes).map_err(|error| cannot(&error))?;
        fetched += bytes.len() as u64;
    }
    let found = Digest(hash.finalize().into());
    if found != part.digest {
        return Err(cannot(&format!("it arrived with digest {}", found.short())));
    }
    Ok(())
}

async fn fetch_piece(
    endpoint: &Endpoint,
    path: &str,
    range: (u64, u64),
) -> Result<Vec<u8>, String> {
    let mut tries = 0;
    loop {
        tries += 1;
        match try_piece(endpoint, path, range).await {
            Err(error) if tries < TRIES => {
                tracing::warn!(error, "cannot fetch a part of the next boot; retrying");
                sleep(RETRY).await;
            }
            result => return result,
        }
    }
}

async fn try_piece(endpoint: &Endpoint, path: &str, range: (u64, u64)) -> Result<Vec<u8>, String> {
    let piece = call::piece(endpoint, path, range).await.map_err(|error| error.to_string())?;
    let mut body = match piece {
        Piece::Body { body, .. } => body,
        Piece::PastEnd => return Ok(Vec::new()),
        Piece::Unavailable(reason) => return Err(reason),
    };
    let length = usize::try_from(range.1 - range.0).map_err(|error| error.to_string())?;
    let mut bytes = Vec::with_capacity(length);
    while let Some(more) = body.next().await.map_err(|error| error.to_string())? {
        if bytes.len() + more.len() > length {
            return Err("the response is longer than the range".to_owned());
        }
        bytes.extend_from_slice(&more);
    }
    Ok(bytes)
}

/// Appends the overlay, which the central node gives once.
pub(super) async fn append_overlay(
    endpoint: &Endpoint,
    session: BootSessionId,
    file: &mut File,
) -> Result<(), String> {
    let cannot = |why: &dyn std::fmt::Display| format!("cannot fetch the overlay: {why}");
    let step = WarmBootStep { version: VERSION, session };
    let (mut body, digest) = call::post_for_bytes(endpoint, WARM_OVERLAY_PATH, &step)
        .await
        .map_err(|error| cannot(&error))?;
    let mut hash = Sha256::new();
    let mut length = 0;
    while let Some(bytes) = body.next().await.map_err(|error| cannot(&error))? {
        length += bytes.len();
        if length > MAX_OVERLAY {
            return Err(cannot(&"it is too large"));
        }
        hash.update(&bytes);
        file.write_all(&bytes).map_err(|error| cannot(&error))?;
    }
    let found = Digest(hash.finalize().into());
    if Some(found) != digest {
        return Err(cannot(&format!("it arrived with digest {}", found.short())));
    }
    Ok(())
}
