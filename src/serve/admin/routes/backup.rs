//! `POST /v1/backup`: streams an encrypted backup.

use crate::admin::{error::Refused, extract::Body as OrderBody};
use axum::{
    body::Body,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use meshd_api::MakeBackup;
use meshd_backup::{BackupError, MIN_KEY};
use meshd_central::Shared;
use meshd_model::fleet::AuditContext;
use std::io::{self, Write};
use tokio::sync::mpsc;

/// Maximum number of pieces that wait for a slow reader.
const AHEAD: usize = 8;
/// Size of a piece, in bytes.
const PIECE: usize = 64 << 10;

pub(crate) async fn backup(
    State(central): State<Shared>,
    context: AuditContext,
    OrderBody(MakeBackup { key, blobs }): OrderBody<MakeBackup>,
) -> Result<Response, Refused> {
    // The length of the key is not secret.
    let length = key.expose().chars().count();
    if length < MIN_KEY {
        return Err(Refused::unreadable(&BackupError::ShortKey { length }));
    }
    let snapshot = central.admin.snapshot(&context).await.map_err(|error| match error {
        BackupError::Store(error) => Refused::from(error),
        other => Refused::of(StatusCode::INTERNAL_SERVER_ERROR, "internal", &other),
    })?;
    let (pieces, out) = mpsc::channel(AHEAD);
    tokio::task::spawn_blocking(move || {
        let mut pipe = io::BufWriter::with_capacity(PIECE, Pipe(pieces.clone()));
        let made = central.admin.back_up(snapshot, blobs, &key, &mut pipe);
        match made.map_err(io::Error::other).and_then(|manifest| pipe.flush().map(|()| manifest)) {
            Ok(manifest) => tracing::info!(members = manifest.members.len(), "created a backup"),
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "cannot create a backup");
                // The error aborts the response, so that no client accepts it as a complete backup.
                let _ = pieces.blocking_send(Err(error));
            }
        }
    });
    let stream =
        futures_util::stream::unfold(out, |mut out| async move { Some((out.recv().await?, out)) });
    Ok(([(CONTENT_TYPE, "application/octet-stream")], Body::from_stream(stream)).into_response())
}

/// Writer that sends its input through a channel.
struct Pipe(mpsc::Sender<io::Result<Bytes>>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.0.blocking_send(Ok(Bytes::copy_from_slice(bytes)));
        sent.map_err(|_| {
            io::Error::new(io::ErrorKind::BrokenPipe, "the client closed the connection")
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
