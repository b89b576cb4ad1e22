// A call, a stream and a session from Go; any release 1.x of grpc-go from 1.33 on.
//
//	sh generate.sh && go mod tidy && go run . [TARGET]
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "example.org/app/omservev1"
)

func main() {
	target := "localhost:50051"
	if len(os.Args) > 1 {
		target = os.Args[1]
	}
	// Newer releases call these NewClient and insecure.NewCredentials, and keep the old names.
	connection, err := grpc.Dial(target, grpc.WithInsecure())
	if err != nil {
		log.Fatal(err)
	}
	defer connection.Close()
	client := pb.NewInferenceServiceClient(connection)
	for _, run := range []func(context.Context, pb.InferenceServiceClient) error{call, stream, session} {
		if err := run(context.Background(), client); err != nil {
			log.Fatal(err)
		}
	}
}

// Fields that are left out keep their defaults; zeros that are set count as zeros.
func greedy(maxNewTokens int32) *pb.SamplingParams {
	return &pb.SamplingParams{
		Temperature:  proto.Float64(0),
		MaxNewTokens: proto.Int32(maxNewTokens),
	}
}

func textPrompt(text string) *pb.Prompt {
	return &pb.Prompt{Input: &pb.Prompt_Text{Text: text}}
}

func call(ctx context.Context, client pb.InferenceServiceClient) error {
	reply, err := client.Generate(ctx, &pb.GenerateRequest{
		Prompt:         textPrompt("The capital of France is"),
		SamplingParams: greedy(16),
	})
	if err != nil {
		return err
	}
	fmt.Printf("unary: %q\n", reply.Choices[0].Text)
	return nil
}

func stream(ctx context.Context, client pb.InferenceServiceClient) error {
	events, err := client.GenerateStream(ctx, &pb.GenerateStreamRequest{
		Prompt:         textPrompt("1, 2, 3,"),
		SamplingParams: greedy(16),
	})
	if err != nil {
		return err
	}
	text := ""
	for {
		event, err := events.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		text += event.Text
		if event.FinishReason != pb.FinishReason_FINISH_REASON_UNSPECIFIED {
			fmt.Printf("stream: %q %v\n", text, event.FinishReason)
		}
	}
}

// Two requests over one stream; the second is cancelled behind its first event. Each event takes a
// credit of its request, and is answered by one.
func session(ctx context.Context, client pb.InferenceServiceClient) error {
	frames, err := client.Session(ctx)
	if err != nil {
		return err
	}
	if err := start(frames, "short", "The capital of France is", 8); err != nil {
		return err
	}
	if err := start(frames, "long", "Once upon a time", 200); err != nil {
		return err
	}
	for open := 2; open > 0; {
		frame, err := frames.Recv()
		if err != nil {
			return err
		}
		if refusal := frame.GetRefusal(); refusal != nil {
			return fmt.Errorf("%s was refused: %s", refusal.RequestId, refusal.Message)
		}
		event := frame.GetEvent()
		if event.FinishReason != pb.FinishReason_FINISH_REASON_UNSPECIFIED {
			fmt.Printf("session: %s %v\n", event.RequestId, event.FinishReason)
			open--
			continue
		}
		if err := answer(frames, event.RequestId); err != nil {
			return err
		}
	}
	return frames.CloseSend() // nothing more is sent; the server then ends the session
}

func start(frames pb.InferenceService_SessionClient, id, prompt string, maxNewTokens int32) error {
	params := greedy(maxNewTokens)
	params.IgnoreEos = proto.Bool(true)
	return frames.Send(&pb.SessionRequest{Frame: &pb.SessionRequest_Start{Start: &pb.SessionStart{
		Request: &pb.GenerateStreamRequest{
			RequestId:      proto.String(id),
			Prompt:         textPrompt(prompt),
			SamplingParams: params,
		},
		NumEvents: proto.Int32(4),
	}}})
}

func answer(frames pb.InferenceService_SessionClient, id string) error {
	credits := &pb.SessionCredits{RequestId: id, NumEvents: proto.Int32(1)}
	err := frames.Send(&pb.SessionRequest{Frame: &pb.SessionRequest_Credits{Credits: credits}})
	if err != nil || id != "long" {
		return err
	}
	cancel := &pb.SessionCancel{RequestId: id}
	return frames.Send(&pb.SessionRequest{Frame: &pb.SessionRequest_Cancel{Cancel: cancel}})
}
