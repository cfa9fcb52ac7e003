//! `--server URL`: the admin API over HTTPS. The token comes from a file, because all users of a
//! machine can read command lines.

use crate::cli::{Failure, output::given_options::GivenOptions, path_text};
use clap::Args;
use hyper::Uri;
use meshd_client::{ClientError, Endpoint, pinned_config};
use meshd_config::files::read_argument;
use meshd_types::{Digest, Secret};
use rustls::{
    CertificateError, ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    version::TLS13,
};
use std::{
    ffi::OsStr, fs, os::unix::fs::PermissionsExt as _, path::Path, path::PathBuf, sync::Arc,
};

/// File of the trusted certificates of the system, on Debian and Alpine.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Maximum length of a token, in bytes.
const MAX_TOKEN: usize = 256;
/// Maximum size of the file of a token, in bytes.
const MAX_TOKEN_FILE: u64 = 4096;
/// Maximum size of a file of trusted certificates, in bytes. That of Debian has 220 kB.
const MAX_ROOTS: u64 = 16 << 20;

/// Options for a central node on another machine
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Remote {
    /// URL of another central node: https://HOST:PORT
    #[arg(long, global = true, value_name = "URL", env = "MESHD_SERVER")]
    server: Option<Uri>,
    /// File with the API token for --server
    #[arg(long, global = true, value_name = "FILE", env = "MESHD_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// SHA-256 of the certificate of --server
    #[arg(long, global = true, value_name = "SHA256", env = "MESHD_SERVER_FINGERPRINT")]
    server_fingerprint: Option<String>,
    /// PEM file of the authorities that --server uses
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "MESHD_SERVER_CA",
        conflicts_with = "server_fingerprint"
    )]
    server_ca: Option<PathBuf>,
}

impl Remote {
    /// Returns true if `--server` names a central node.
    pub(crate) fn is_named(&self) -> bool {
        self.server.is_some()
    }

    /// Returns the URL of `--server` for output, if present.
    pub(crate) fn url_text(&self) -> Option<String> {
        self.server.as_ref().map(|url| url.to_string().trim_end_matches('/').to_owned())
    }

    /// Adds the options that the caller gave to commands in messages.
    pub(crate) fn give(&self, given: &mut GivenOptions) {
        let url = self.url_text();
        let fingerprint = self.server_fingerprint.as_deref().map(OsStr::new);
        let token_file = self.token_file.as_deref();
        let ca = self.server_ca.as_deref();
        given.add_central("--server", "MESHD_SERVER", url.as_deref().map(OsStr::new));
        given.add_central("--token-file", "MESHD_TOKEN_FILE", token_file.map(Path::as_os_str));
        given.add_central("--server-fingerprint", "MESHD_SERVER_FINGERPRINT", fingerprint);
        given.add_central("--server-ca", "MESHD_SERVER_CA", ca.map(Path::as_os_str));
    }

    /// Returns the server of `--server`, if present.
    pub(crate) fn server(&self) -> Result<Option<Server>, Failure> {
        let Some(url) = &self.server else { return Ok(None) };
        let invalid = |message: String| Failure::new(message, "write --server https://HOST:PORT");
        if url.scheme_str() != Some("https")
            || !matches!(url.path(), "" | "/")
            || url.query().is_some()
        {
            return Err(invalid(format!("invalid server address `{url}`")));
        }
        let host = url.host().ok_or_else(|| invalid(format!("`{url}` names no host")))?.to_owned();
        let name = host.trim_matches(['[', ']']).to_owned();
        let name =
            ServerName::try_from(name).map_err(|_| invalid(format!("invalid host `{host}`")))?;
        let file = self.token_file.as_deref().ok_or_else(|| {
            Failure::new(
                "--server needs a token",
                "name its file with --token-file FILE or MESHD_TOKEN_FILE",
            )
        })?;
        let token = read_token(file)?;
        let host = host.trim_matches(['[', ']']).to_owned();
        let port = url.port_u16().unwrap_or(443);
        let config = Arc::new(self.config()?);
        Ok(Some(Server { endpoint: Endpoint::Tls { host, port, name, config }, token }))
    }

    fn config(&self) -> Result<ClientConfig, Failure> {
        if let Some(text) = &self.server_fingerprint {
            let expected: String = text.to_lowercase().chars().filter(|c| *c != ':').collect();
            let expected = meshd_types::unhex::<32>(&expected).ok_or_else(|| {
                let message = format!("invalid fingerprint `{text}`: not a SHA-256");
                let hint = "copy the fingerprint that `meshd status` shows on the central node";
                Failure::new(message, hint)
            })?;
            let pinned = pinned_config([Digest(expected)].into(), &[&TLS13]);
            return pinned.map_err(|error| Failure::without_hint(&error));
        }
        let file = self.server_ca.as_deref().unwrap_or(Path::new(SYSTEM_ROOTS));
        let roots = read_roots(file)?;
        let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_protocol_versions(&[&TLS13])
            .map_err(|error| Failure::without_hint(&error))?;
        Ok(builder.with_root_certificates(roots).with_no_client_auth())
    }
}

fn read_roots(file: &Path) -> Result<RootCertStore, Failure> {
    let hint = "name a file of certificates with --server-ca, or the fingerprint of the server's with --server-fingerprint";
    let failed = |what: String| Failure::new(format!("{}: {what}", path_text(file)), hint);
    let pem = read_argument(file, MAX_ROOTS).map_err(|error| failed(error.to_string()))?;
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let (added, _) =
        roots.add_parsable_certificates(certificates.map_err(|error| failed(error.to_string()))?);
    if added == 0 { Err(failed("holds no certificate".to_owned())) } else { Ok(roots) }
}

fn read_token(file: &Path) -> Result<Secret<String>, Failure> {
    let failed =
        |what: String, hint: &str| Failure::new(format!("{}: {what}", path_text(file)), hint);
    let bytes = read_argument(file, MAX_TOKEN_FILE)
        .map_err(|error| failed(error.to_string(), "is it the file of the token?"))?;
    let whole = String::from_utf8_lossy(&bytes);
    let mode = fs::metadata(file).map_or(0, |meta| meta.permissions().mode());
    if mode & 0o077 != 0 {
        message!(
            "warning: others may read {}; run: chmod 600 {}",
            path_text(file),
            path_text(file)
        );
    }
    let token = whole.trim();
    if token.is_empty()
        || token.len() > MAX_TOKEN
        || !token.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(failed("holds no token".to_owned(), "`meshd api-token create` prints one"));
    }
    Ok(Secret::new(token.to_owned()))
}

/// A central node on another machine.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) endpoint: Endpoint,
    pub(crate) token: Secret<String>,
}

/// Returns the failure for a connection error to a central node on another machine.
pub(super) fn unreachable(server: &Endpoint, error: &ClientError) -> Failure {
    if let Some(rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer)) =
        error.tls_error()
    {
        let message =
            format!("cannot connect to {server}: the issuer of its certificate is unknown");
        return Failure::new(
            message,
            "use --server-fingerprint SHA256, as `meshd status` shows it on the central node",
        );
    }
    let hint = "is meshd running there, with [admin.https]? does a firewall lie between? is the certificate the one it shows?";
    Failure::new(error.to_string(), hint)
}
