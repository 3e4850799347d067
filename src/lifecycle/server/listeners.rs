//! The data port's listeners, built from the configuration by one function.

use std::fs::Permissions;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;

use pingora::listeners::{L4BufferSettings, ListenerConfig};
use socket2::{Domain, Socket, Type};

use crate::config::{Config, ListenAddress, Listener};

/// Answers up to this size leave in one write together with their head.
const WRITE_BUFFER: usize = 2048;

/// Every address that is listened on, the admin port's among them.
pub(super) fn addresses(config: &Config) -> Vec<ListenAddress> {
    let data = config.server.listen.iter().map(|listener| listener.address.clone());
    data.chain(config.admin.listen.map(ListenAddress::Tcp)).collect()
}

/// Whether an address can be listened on.
///
/// # Errors
/// What the system says against it.
pub(crate) fn try_listen(address: &ListenAddress) -> std::io::Result<()> {
    match address {
        ListenAddress::Tcp(address) => try_bind(*address),
        ListenAddress::Unix(path) => check_socket(path),
    }
}

// Bound, but not listening: who connects at this moment is refused, and not cut off afterwards.
fn try_bind(address: SocketAddr) -> std::io::Result<()> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())
}

/// A socket left behind is taken over; one that answers, or a file that is none, is not.
fn check_socket(path: &Path) -> std::io::Result<()> {
    let Ok(about) = std::fs::symlink_metadata(path) else {
        let folder = path.parent().unwrap_or(Path::new("/"));
        return std::fs::metadata(folder).map(drop);
    };
    if !about.file_type().is_socket() || UnixStream::connect(path).is_ok() {
        return Err(std::io::ErrorKind::AddrInUse.into());
    }
    Ok(())
}

/// The sockets clients connect to.
pub(super) fn listeners(config: &Config) -> impl Iterator<Item = ListenerConfig> {
    config.server.listen.iter().map(listener)
}

fn listener(listener: &Listener) -> ListenerConfig {
    let socket = match &listener.address {
        ListenAddress::Tcp(address) => ListenerConfig::tcp(address.to_string()),
        ListenAddress::Unix(path) => ListenerConfig::uds(path.to_string_lossy())
            .permissions(Permissions::from_mode(listener.mode)),
    };
    socket.l4_buffer(L4BufferSettings::new(0, WRITE_BUFFER))
}
