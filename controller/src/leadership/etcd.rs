//! The calls to etcd that an [election](super::election) requires, each with a time limit. After a
//! failed call, the next one uses another member of the cluster, if there is one.

use super::election::{EtcdRequest, EtcdResponse, Leader, LeaderRecord};
use cool_machine::Duration;
use cool_proto::job_ids;
use cool_tls::ServiceConnector;
use http::Uri;
use parking_lot::Mutex;
use proto::compare::{CompareResult, CompareTarget, TargetUnion};
use proto::request_op::Request as Operation;
use proto::response_op::Response as Outcome;
use proto::watch_request::RequestUnion;
use proto::{
    Compare, KeyValue, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest, PutRequest,
    RangeRequest, RequestOp, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest,
};
use tokio::time::timeout;
use tokio_stream::StreamExt;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated; documented in proto/etcd.proto")]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/etcdserverpb.rs"));
}

/// Why a call to etcd failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EtcdError {
    #[error("no response within {0:?}")]
    Late(Duration),
    #[error("{0}")]
    Unreachable(String),
    #[error("it refused the request: {0}")]
    Refused(String),
    #[error(
        "its key {key:?} has the value {value:?}, which is not a number; remove the key, or choose another --lead-prefix"
    )]
    NoGeneration { key: String, value: String },
    #[error("it ended the response stream")]
    Ended,
}

/// A client of etcd, with the keys of one deployment.
pub(crate) struct Etcd {
    endpoint: Endpoint,
    connector: ServiceConnector,
    /// The current connection. A failed call drops it, so that another member is tried next.
    channel: Mutex<Option<Channel>>,
    /// Key that the leader holds, and this controller's name as its value.
    leader: String,
    name: String,
    /// Key of the last generation.
    generation: String,
    /// Beginning of all keys.
    prefix: String,
}

impl Etcd {
    /// Returns a client that is not connected yet. All keys start with `prefix`.
    pub(crate) fn new((first, connector): (Uri, ServiceConnector), prefix: &str, name: String) -> Etcd {
        let prefix = prefix.trim_end_matches('/');
        Etcd {
            endpoint: Endpoint::from(first),
            connector,
            channel: Mutex::default(),
            leader: format!("{prefix}/leader"),
            generation: format!("{prefix}/generation"),
            name,
            prefix: prefix.to_owned(),
        }
    }

    /// Returns the value of another key of the deployment, or `None` if it does not exist.
    pub(crate) async fn load(&self, key: &str, within: Duration) -> Result<Option<String>, EtcdError> {
        let key = format!("{}/{key}", self.prefix);
        let read = [range(&key), range(&self.leader)].map(Operation::RequestRange);
        let mut read = self.transact_within(read, within).await?.responses.into_iter();
        match read.next().and_then(|response| response.response) {
            Some(Outcome::ResponseRange(range)) => Ok(range.kvs.first().map(text)),
            _ => Ok(None),
        }
    }

    /// Sets the value of another key of the deployment.
    pub(crate) async fn save(&self, key: &str, value: &str, within: Duration) -> Result<(), EtcdError> {
        let put = put(&format!("{}/{key}", self.prefix), value.to_owned(), 0);
        let write = [Operation::RequestPut(put), Operation::RequestRange(range(&self.leader))];
        self.transact_within(write, within).await.map(drop)
    }

    async fn transact_within(
        &self,
        operations: [Operation; 2],
        within: Duration,
    ) -> Result<TxnResponse, EtcdError> {
        let transaction = async { transact(self.channel().await?, Vec::new(), operations).await };
        timeout(within, transaction).await.unwrap_or(Err(EtcdError::Late(within)))
    }

    /// Sends a request and waits for its response, at most `within`. If the future is dropped, it
    /// is unknown whether the request took effect.
    pub(crate) async fn send(
        &self,
        request: &EtcdRequest,
        within: Duration,
    ) -> Result<EtcdResponse, EtcdError> {
        let response = timeout(within, self.call(request)).await;
        // The end of the time limit without a change is a normal result of a watch.
        if response.is_err() && matches!(request, EtcdRequest::Watch { .. }) {
            return Ok(EtcdResponse::Watched);
        }
        let response = response.unwrap_or(Err(EtcdError::Late(within)));
        if response.is_err() {
            *self.channel.lock() = None;
        }
        response
    }

    async fn call(&self, request: &EtcdRequest) -> Result<EtcdResponse, EtcdError> {
        let channel = self.channel().await?;
        match *request {
            EtcdRequest::Read => self.read(channel).await,
            EtcdRequest::Watch { revision } => self.watch(channel, revision).await,
            EtcdRequest::Grant { ttl } => grant(channel, ttl).await,
            EtcdRequest::Claim { lease, generation, generation_revision } => {
                self.claim(channel, lease, generation, generation_revision).await
            }
            EtcdRequest::Renew { lease } => renew(channel, lease).await,
            EtcdRequest::Revoke { lease } => revoke(channel, lease).await,
        }
    }

    async fn channel(&self) -> Result<Channel, EtcdError> {
        let open = self.channel.lock().clone();
        if let Some(channel) = open {
            return Ok(channel);
        }
        let connected = self.endpoint.connect_with_connector(self.connector.clone()).await;
        let channel = connected.map_err(|error| EtcdError::Unreachable(innermost(&error)))?;
        *self.channel.lock() = Some(channel.clone());
        Ok(channel)
    }

    /// Reads both keys at the same revision. The read is linearizable: every member returns a state
    /// that a majority has confirmed.
    async fn read(&self, channel: Channel) -> Result<EtcdResponse, EtcdError> {
        let operations = [&self.leader, &self.generation].map(|key| Operation::RequestRange(range(key)));
        let read = transact(channel, Vec::new(), operations).await?;
        let revision = read.header.map_or(0, |header| header.revision);
        let mut keys = read.responses.into_iter().map(|response| match response.response {
            Some(Outcome::ResponseRange(range)) => range.kvs.into_iter().next(),
            None => None,
        });
        let (leader, generation) = (keys.next().flatten(), keys.next().flatten());
        let leader = leader.map(|key| Leader { name: text(&key), lease: key.lease });
        let generation_revision = generation.as_ref().map_or(0, |key| key.mod_revision);
        let generation = match generation {
            Some(key) => text(&key)
                .parse()
                .map_err(|_| EtcdError::NoGeneration { key: self.generation.clone(), value: text(&key) })?,
            None => 0,
        };
        Ok(EtcdResponse::Read(
            LeaderRecord { leader, generation, generation_revision, revision },
            job_ids::now(),
        ))
    }

    async fn watch(&self, channel: Channel, revision: i64) -> Result<EtcdResponse, EtcdError> {
        let create =
            WatchCreateRequest { key: self.leader.clone().into_bytes(), start_revision: revision + 1 };
        let create = WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) };
        let mut client = proto::watch_client::WatchClient::new(channel);
        // The watch lasts as long as its request stream is open.
        let requests = tokio_stream::once(create).chain(tokio_stream::pending());
        let mut responses = client.watch(requests).await?.into_inner();
        while let Some(response) = responses.message().await? {
            if response.canceled {
                return Err(EtcdError::Refused(response.cancel_reason));
            }
            if !response.events.is_empty() {
                return Ok(EtcdResponse::Watched);
            }
        }
        Err(EtcdError::Ended)
    }

    async fn claim(
        &self,
        channel: Channel,
        lease: i64,
        generation: u64,
        generation_revision: i64,
    ) -> Result<EtcdResponse, EtcdError> {
        let nobody = compare(&self.leader, CompareTarget::Create, TargetUnion::CreateRevision(0));
        let revision = TargetUnion::ModRevision(generation_revision);
        let unchanged = compare(&self.generation, CompareTarget::Mod, revision);
        let leader = put(&self.leader, self.name.clone(), lease);
        let generation = put(&self.generation, generation.to_string(), 0);
        let operations = [leader, generation].map(Operation::RequestPut);
        let claimed = transact(channel, vec![nobody, unchanged], operations).await?;
        Ok(EtcdResponse::Claimed(claimed.succeeded))
    }
}

async fn grant(channel: Channel, ttl: Duration) -> Result<EtcdResponse, EtcdError> {
    let ttl = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
    let mut client = proto::lease_client::LeaseClient::new(channel);
    let granted = client.lease_grant(LeaseGrantRequest { ttl }).await?.into_inner();
    match granted.error.is_empty() {
        true => Ok(EtcdResponse::Granted { lease: granted.id, ttl: seconds(granted.ttl) }),
        false => Err(EtcdError::Refused(granted.error)),
    }
}

async fn renew(channel: Channel, lease: i64) -> Result<EtcdResponse, EtcdError> {
    let mut client = proto::lease_client::LeaseClient::new(channel);
    let mut responses =
        client.lease_keep_alive(tokio_stream::once(LeaseKeepAliveRequest { id: lease })).await?.into_inner();
    let renewed = responses.message().await?.ok_or(EtcdError::Ended)?;
    Ok(EtcdResponse::Renewed { ttl: seconds(renewed.ttl) })
}

async fn revoke(channel: Channel, lease: i64) -> Result<EtcdResponse, EtcdError> {
    let mut client = proto::lease_client::LeaseClient::new(channel);
    client.lease_revoke(LeaseRevokeRequest { id: lease }).await?;
    Ok(EtcdResponse::Revoked)
}

async fn transact(
    channel: Channel,
    compare: Vec<Compare>,
    operations: [Operation; 2],
) -> Result<TxnResponse, EtcdError> {
    let success = operations.map(|operation| RequestOp { request: Some(operation) }).into();
    let mut client = proto::kv_client::KvClient::new(channel);
    Ok(client.txn(TxnRequest { compare, success }).await?.into_inner())
}

fn range(key: &str) -> RangeRequest {
    RangeRequest { key: key.into() }
}

fn put(key: &str, value: String, lease: i64) -> PutRequest {
    PutRequest { key: key.into(), value: value.into(), lease }
}

fn compare(key: &str, target: CompareTarget, value: TargetUnion) -> Compare {
    let (result, target) = (CompareResult::Equal.into(), target.into());
    Compare { result, target, key: key.into(), target_union: Some(value) }
}

fn text(key: &KeyValue) -> String {
    String::from_utf8_lossy(&key.value).into_owned()
}

fn seconds(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

impl From<Status> for EtcdError {
    fn from(status: Status) -> EtcdError {
        match std::error::Error::source(&status) {
            Some(source) => EtcdError::Unreachable(innermost(source)),
            None => EtcdError::Refused(status.message().to_owned()),
        }
    }
}

/// Returns the root cause of an error, because the outer ones only state "transport error".
fn innermost(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => innermost(source),
        None => error.to_string(),
    }
}
