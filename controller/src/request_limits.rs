//! Limits the size of requests by the kind of caller.
//!
//! Agents report all groups that they hold and therefore may send messages of up to
//! [`CONTROL_MESSAGE_BYTES_MAX`]. A tool has no reason to do so, and many users have certificates
//! for tools, so the memory that a tool's request takes is bounded much lower.

use cool_proto::CONTROL_MESSAGE_BYTES_MAX;
use cool_proto::control::controller_server::{Controller, ControllerServer, SERVICE_NAME};
use cool_proto::job_request::TOOL_REQUEST_BYTES_MAX;
use std::convert::Infallible;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service};
use tonic::server::NamedService;

/// Name of the method that agents call.
const AGENT_METHOD: &str = "/Join";

/// The controller's service with a limit on the size of each request.
#[derive(Debug)]
pub struct LimitedController<T> {
    agents: ControllerServer<T>,
    tools: ControllerServer<T>,
}

impl<T: Clone> LimitedController<T> {
    /// Returns the service with its limits.
    pub fn new(service: T) -> LimitedController<T> {
        LimitedController {
            agents: ControllerServer::new(service.clone())
                .max_decoding_message_size(CONTROL_MESSAGE_BYTES_MAX),
            tools: ControllerServer::new(service).max_decoding_message_size(TOOL_REQUEST_BYTES_MAX),
        }
    }
}

impl<T> Clone for LimitedController<T> {
    fn clone(&self) -> LimitedController<T> {
        LimitedController { agents: self.agents.clone(), tools: self.tools.clone() }
    }
}

impl<T: Controller> Service<http::Request<Body>> for LimitedController<T> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Both servers are always ready.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match request.uri().path().ends_with(AGENT_METHOD) {
            true => self.agents.call(request),
            false => self.tools.call(request),
        }
    }
}

impl<T> NamedService for LimitedController<T> {
    const NAME: &'static str = SERVICE_NAME;
}
