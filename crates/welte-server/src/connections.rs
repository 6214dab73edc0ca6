//! The connections at a time: how many there may be in all and from one address, and which one goes when a new one has
//! no place.
//!
//! A connection without a request in flight is idle. When the places are taken, the connection that has been idle for
//! the longest time is closed for the new one. If none is idle, the new one gets one of the spare places, which answer
//! `/health` only.

use axum::body::{Body, Bytes, HttpBody};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;

/// Places beside those of [`Limits::all`], for `/health`.
pub(crate) const SPARE: usize = 64;
/// Spare places of one address.
const SPARE_PER_ADDRESS: usize = 16;

/// The most connections at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) all: usize,
    pub(crate) per_address: usize,
}

/// What a connection may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Full,
    /// Only `/health`, once.
    Spare,
}

/// All connections of a server.
pub(crate) struct Connections {
    limits: Limits,
    state: Mutex<State>,
    /// Says that a connection has ended.
    ended: Notify,
}

#[derive(Default)]
struct State {
    all: BTreeMap<u64, Entry>,
    next: u64,
    draining: bool,
}

struct Entry {
    address: IpAddr,
    kind: Kind,
    /// Since when it is idle; `None`: a request is in flight.
    idle: Option<Instant>,
    orders: Arc<Orders>,
}

/// What a connection is told to do.
#[derive(Default)]
pub(crate) struct Orders {
    /// Close at once.
    pub(crate) close: Notify,
    /// Close after the answer in flight.
    pub(crate) finish: Notify,
}

impl State {
    fn of_kind(&self, kind: Kind) -> impl Iterator<Item = (&u64, &Entry)> {
        self.all.iter().filter(move |(_, entry)| entry.kind == kind)
    }

    /// Closes an idle connection that `may_go`, if there is one: of the address that has the most of them, the one that
    /// has been idle for the longest time.
    fn close_one(&mut self, may_go: impl Fn(&Entry) -> bool) -> bool {
        let mut oldest: HashMap<IpAddr, (usize, Instant, u64)> = HashMap::new();
        for (id, entry) in &self.all {
            let Some(since) = entry.idle.filter(|_| may_go(entry)) else {
                continue;
            };
            let found = oldest.entry(entry.address).or_insert((0, since, *id));
            found.0 += 1;
            if since < found.1 {
                (found.1, found.2) = (since, *id);
            }
        }
        let first = oldest
            .values()
            .max_by_key(|(count, since, _)| (*count, std::cmp::Reverse(*since)));
        let gone = first.and_then(|(_, _, id)| self.all.remove(id));
        if let Some(entry) = &gone {
            entry.orders.close.notify_one();
        }
        gone.is_some()
    }

    /// Whether there is a place of this kind, perhaps because an idle connection is closed for it.
    fn has_place(&mut self, kind: Kind, address: IpAddr, limits: Limits) -> bool {
        let of_address = |entry: &Entry| entry.kind == kind && entry.address == address;
        let own = self.all.values().filter(|entry| of_address(entry)).count();
        if own >= limits.per_address {
            return self.close_one(of_address);
        }
        self.of_kind(kind).count() < limits.all || self.close_one(|entry| entry.kind == kind)
    }
}

impl Connections {
    pub(crate) fn new(limits: Limits) -> Connections {
        Connections {
            limits,
            state: Mutex::default(),
            ended: Notify::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new connection; `None`: it must be closed.
    pub(crate) fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Arc<Place>> {
        let address = network(address);
        let spare = Limits {
            all: SPARE,
            per_address: SPARE_PER_ADDRESS,
        };
        let mut state = self.state();
        let kind = if !state.draining && state.has_place(Kind::Full, address, self.limits) {
            Kind::Full
        } else if state.has_place(Kind::Spare, address, spare) {
            Kind::Spare
        } else {
            return None;
        };
        let (id, orders) = (state.next, Arc::new(Orders::default()));
        state.next += 1;
        let entry = Entry {
            address,
            kind,
            idle: Some(Instant::now()),
            orders: orders.clone(),
        };
        state.all.insert(id, entry);
        Some(Arc::new(Place {
            id,
            kind,
            orders,
            connections: self.clone(),
            held: Mutex::default(),
        }))
    }

    /// Closes the connection that has been idle for the longest time. False if none is idle.
    pub(crate) fn close_idle(&self) -> bool {
        self.state().close_one(|_| true)
    }

    /// From now on connections get spare places only. Idle ones are closed, others end after their answers.
    pub(crate) fn drain(&self) {
        let mut state = self.state();
        state.draining = true;
        while state.close_one(|entry| entry.kind == Kind::Full) {}
        for (_, entry) in state.of_kind(Kind::Full) {
            entry.orders.finish.notify_one();
        }
    }

    /// Waits until the last answer has been sent, after [`Connections::drain`].
    pub(crate) async fn drained(&self) {
        loop {
            let ended = self.ended.notified();
            if self.state().of_kind(Kind::Full).next().is_none() {
                return;
            }
            ended.await;
        }
    }
}

/// What counts as one address: a provider gives each customer at least 64 bits of IPv6.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) if !address.is_loopback() => {
            let network = address.to_bits() >> 64 << 64;
            Ipv6Addr::from_bits(network).into()
        }
        address => address,
    }
}

/// The place of a connection.
pub(crate) struct Place {
    id: u64,
    pub(crate) kind: Kind,
    pub(crate) orders: Arc<Orders>,
    connections: Arc<Connections>,
    held: Mutex<Held>,
}

/// Whether the end of the client's half is kept from the server, and who waits for it.
#[derive(Default)]
struct Held {
    until_answered: bool,
    reader: Option<Waker>,
    /// An answer has been handed over whole, but perhaps not sent.
    unsent: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.connections.state().all.remove(&self.id);
        self.connections.ended.notify_waiters();
    }
}

impl Place {
    fn set_idle(&self, idle: Option<Instant>) {
        if let Some(entry) = self.connections.state().all.get_mut(&self.id) {
            entry.idle = idle;
        }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request begins. With `half_closed` it is answered although the client has closed its half of the connection;
    /// otherwise that counts as leaving.
    pub(crate) fn begin(self: &Arc<Self>, half_closed: bool) -> InFlight {
        self.set_idle(None);
        let mut held = self.held();
        (held.until_answered, held.unsent) = (half_closed, false);
        drop(held);
        InFlight(self.clone())
    }

    /// All that was handed over has been sent.
    fn sent(&self) {
        let mut held = self.held();
        if !std::mem::take(&mut held.unsent) {
            return;
        }
        held.until_answered = false;
        let reader = held.reader.take();
        drop(held);
        self.set_idle(Some(Instant::now()));
        if let Some(reader) = reader {
            reader.wake();
        }
    }
}

/// A request in flight, until its answer has been handed over whole. Then [`Place::sent`] ends it.
pub(crate) struct InFlight(Arc<Place>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.held().unsent = true;
    }
}

/// The body of an answer, which ends a request in flight.
pub(crate) struct LastPart {
    pub(crate) body: Body,
    /// Dropped with the body.
    pub(crate) _in_flight: InFlight,
}

impl HttpBody for LastPart {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

/// A connection's socket. It keeps the end of the client's half back while a request is answered that waits for it.
pub(crate) struct Socket {
    stream: TcpStream,
    place: Arc<Place>,
    ended: bool,
}

impl Socket {
    pub(crate) fn new(stream: TcpStream, place: Arc<Place>) -> Socket {
        Socket {
            stream,
            place,
            ended: false,
        }
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        if !self.ended {
            ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
            self.ended = buffer.filled().len() == before && buffer.remaining() > 0;
        }
        let mut held = self.place.held();
        if self.ended && held.until_answered {
            held.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The server flushes when all that it has is written.
        ready!(Pin::new(&mut self.stream).poll_flush(context))?;
        self.place.sent();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(all: usize, per_address: usize) -> Arc<Connections> {
        Arc::new(Connections::new(Limits { all, per_address }))
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    async fn is_closed(place: &Place) -> bool {
        let closed = place.orders.close.notified();
        tokio::time::timeout(std::time::Duration::ZERO, closed)
            .await
            .is_ok()
    }

    #[tokio::test]
    async fn the_address_with_the_most_idle_connections_gives_way() {
        let connections = all(4, 3);
        let lone = connections.admit(address(1)).unwrap();
        let many: Vec<_> = (0..3)
            .map(|_| connections.admit(address(2)).unwrap())
            .collect();
        let new = connections.admit(address(3)).unwrap();
        assert_eq!(new.kind, Kind::Full);
        assert!(!is_closed(&lone).await && is_closed(&many[0]).await);
    }

    #[tokio::test]
    async fn an_address_at_its_limit_closes_its_own() {
        let connections = all(8, 2);
        let lone = connections.admit(address(1)).unwrap();
        let first = connections.admit(address(2)).unwrap();
        let second = connections.admit(address(2)).unwrap();
        let third = connections.admit(address(2)).unwrap();
        assert_eq!(third.kind, Kind::Full);
        assert!(is_closed(&first).await && !is_closed(&second).await && !is_closed(&lone).await);
    }

    #[tokio::test]
    async fn without_idle_connections_only_spare_places_are_left() {
        let connections = all(2, 2);
        let full: Vec<_> = (0..2)
            .map(|_| connections.admit(address(1)).unwrap())
            .collect();
        let busy: Vec<_> = full.iter().map(|place| place.begin(false)).collect();
        let spare = connections.admit(address(2)).unwrap();
        assert_eq!(spare.kind, Kind::Spare);
        // One address cannot take all of the spare places, and closes only its own.
        let flood: Vec<_> = (0..2 * SPARE)
            .map(|_| connections.admit(address(1)).unwrap())
            .collect();
        assert!(flood.iter().all(|place| place.kind == Kind::Spare));
        assert!(!is_closed(&spare).await);
        let flooded = flood.last().unwrap().begin(false);
        drop(flood);
        drop(flooded);
        drop(busy);
        // Answers that are not sent yet keep their places.
        assert_eq!(connections.admit(address(2)).unwrap().kind, Kind::Spare);
        full.iter().for_each(|place| place.sent());
        // The limit ends with its cause.
        assert_eq!(connections.admit(address(2)).unwrap().kind, Kind::Full);
    }

    #[tokio::test]
    async fn busy_spare_places_refuse_further_connections() {
        let connections = all(1, 1);
        let full = connections.admit(address(1)).unwrap();
        let _busy = full.begin(false);
        let spare: Vec<_> = (0..SPARE_PER_ADDRESS)
            .map(|_| connections.admit(address(1)).unwrap())
            .collect();
        let busy: Vec<_> = spare.iter().map(|place| place.begin(false)).collect();
        assert!(connections.admit(address(1)).is_none());
        assert!(connections.admit(address(2)).is_some());
        drop(busy);
        spare.iter().for_each(|place| place.sent());
        assert!(connections.admit(address(1)).is_some());
    }

    #[tokio::test]
    async fn only_idle_connections_make_room() {
        let connections = all(2, 2);
        assert!(!connections.close_idle());
        let place = connections.admit(address(1)).unwrap();
        let busy = place.begin(false);
        assert!(!connections.close_idle());
        drop(busy);
        assert!(!connections.close_idle());
        place.sent();
        assert!(connections.close_idle());
        assert!(is_closed(&place).await);
    }

    #[test]
    fn networks_count_as_one_address() {
        let of = |text: &str| network(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), address(1));
        assert_ne!(of("::1"), of("::2"));
    }
}
