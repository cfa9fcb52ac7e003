//! Signs and verifies package indexes with openssl.

use super::members::{self, File};
use crate::command::{CommandError, ToolCommand};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// Signature types of apk, the strongest first, with openssl's names of their digests.
const KINDS: [(&str, &str); 3] =
    [(".SIGN.RSA512.", "-sha512"), (".SIGN.RSA256.", "-sha256"), (".SIGN.RSA.", "-sha1")];

#[derive(Debug, thiserror::Error)]
pub enum SignatureError {
    /// No trusted key has signed the index.
    #[error("is signed by {} and by none of the keys that the recipe trusts: {}", .signed.join(", "), .trusted.join(", "))]
    UntrustedKey {
        /// Keys of the signatures.
        signed: Vec<String>,
        /// Trusted keys.
        trusted: Vec<String>,
    },
    #[error("is not signed")]
    Unsigned,
    /// The signature of a trusted key is invalid.
    #[error("has a signature of {key} that does not fit: it was changed after it was signed")]
    Invalid { key: String, source: CommandError },
    #[error("is damaged")]
    Damaged(#[source] io::Error),
}

/// Verifies the signature of an index and returns the signed bytes. `scratch` is a folder for
/// openssl's files.
pub(crate) fn verify<'b>(
    bytes: &'b [u8],
    keys: &[PathBuf],
    scratch: &Path,
) -> Result<&'b [u8], SignatureError> {
    let (head, signed) = members::unpack_first(bytes).map_err(SignatureError::Damaged)?;
    let found = members::files(&head).map_err(SignatureError::Damaged)?;
    let mut signers = Vec::new();
    for (prefix, digest) in KINDS {
        for (signer, signature) in
            found.iter().filter_map(|file| Some((file.name.strip_prefix(prefix)?, &file.bytes)))
        {
            let Some(key) = keys.iter().find(|key| name(key) == signer) else {
                signers.push(signer.to_owned());
                continue;
            };
            let signature_file = scratch.join("signature");
            let signed_file = scratch.join("signed");
            fs::write(&signature_file, signature).map_err(SignatureError::Damaged)?;
            fs::write(&signed_file, signed).map_err(SignatureError::Damaged)?;
            let run = ToolCommand::new("openssl")
                .args(["dgst", digest, "-verify"])
                .arg(key)
                .arg("-signature");
            let checked = run.arg(signature_file).arg(signed_file).run();
            return match checked {
                Ok(()) => Ok(signed),
                Err(source) => Err(SignatureError::Invalid { key: signer.to_owned(), source }),
            };
        }
    }
    if signers.is_empty() {
        return Err(SignatureError::Unsigned);
    }
    Err(SignatureError::UntrustedKey {
        signed: signers,
        trusted: keys.iter().map(|key| name(key)).collect(),
    })
}

fn name(key: &Path) -> String {
    key.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Signs an index archive with a private key; nodes have its public key as `name`.
pub(crate) fn sign(
    index: &[File],
    key: &Path,
    name: &str,
    scratch: &Path,
) -> Result<Vec<u8>, CommandError> {
    let body = members::pack(index, true);
    let signature = scratch.join("our.signature");
    let signed = scratch.join("our.index");
    let start = |source| CommandError::Start { program: "openssl".to_owned(), source };
    fs::write(&signed, &body).map_err(start)?;
    ToolCommand::new("openssl")
        .args(["dgst", "-sha256", "-sign"])
        .arg(key)
        .arg("-out")
        .arg(&signature)
        .arg(&signed)
        .run()?;
    let bytes = fs::read(&signature).map_err(start)?;
    let head = members::pack(&[File { name: format!(".SIGN.RSA256.{name}"), bytes }], false);
    Ok([head, body].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(dir: &Path, name: &str) -> (PathBuf, PathBuf) {
        let private = dir.join(name);
        let public = dir.join(format!("{name}.pub"));
        let run = ToolCommand::new("openssl")
            .args(["genpkey", "-quiet", "-algorithm", "RSA", "-out"])
            .arg(&private);
        run.run().unwrap();
        ToolCommand::new("openssl")
            .args(["pkey", "-pubout", "-in"])
            .arg(&private)
            .arg("-out")
            .arg(&public)
            .run()
            .unwrap();
        (private, public)
    }

    #[test]
    fn signature_is_accepted_only_unchanged_and_from_trusted_key() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, public) = key(dir.path(), "ours.rsa");
        let (_, other) = key(dir.path(), "other.rsa");
        let files = [File { name: "APKINDEX".into(), bytes: b"P:a\n".to_vec() }];
        let signed = sign(&files, &ours, "ours.rsa.pub", dir.path()).unwrap();
        let body = verify(&signed, &[other.clone(), public.clone()], dir.path()).unwrap();
        assert_eq!(members::files(&members::unpack_all(body, 1 << 20).unwrap()).unwrap(), files);

        let refuse = |bytes: &[u8], keys: &[PathBuf]| verify(bytes, keys, dir.path()).unwrap_err();
        assert!(matches!(refuse(&signed, &[other]), SignatureError::UntrustedKey { .. }));
        assert!(matches!(refuse(body, std::slice::from_ref(&public)), SignatureError::Unsigned));
        let mut changed = signed.clone();
        let last = changed.len() - 1;
        changed[last] ^= 1;
        assert!(matches!(refuse(&changed, &[public]), SignatureError::Invalid { .. }));
        // An untrusted key with the file name of a trusted key.
        let other_dir = dir.path().join("other");
        fs::create_dir(&other_dir).unwrap();
        fs::copy(dir.path().join("other.rsa.pub"), other_dir.join("ours.rsa.pub")).unwrap();
        assert!(matches!(
            refuse(&signed, &[other_dir.join("ours.rsa.pub")]),
            SignatureError::Invalid { .. }
        ));
    }
}
